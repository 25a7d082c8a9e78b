"""Files by which a system's service manager starts a run, and starts it again after our death.

Pure: a command and its surroundings in, the text of a file out.
"""
