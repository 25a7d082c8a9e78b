"""Hang: a C call deadlocks without the GIL (other Python threads go on)."""

import ctypes_gil

if __name__ == "__main__":
    ctypes_gil.KEEP_GIL = False
    ctypes_gil.main()
