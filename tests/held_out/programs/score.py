"""The task's scorer: reads "predicted<TAB>label" to the end of its input, prints the accuracy."""

import sys

rows = [line.split("\t") for line in sys.stdin]
print(sum(int(predicted) == int(label) for predicted, label in rows) / max(1, len(rows)))
