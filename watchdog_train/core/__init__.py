"""The pure core: values in, values out. It imports no os, time, subprocess or psutil."""
