"""Stands in for `conda run`: a bash script of its own runs the command, by default with captured
output that is printed when the command has ended.

conda_like.py run [-n ENV] [--no-capture-output] COMMAND...
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile


def main() -> int:
    parser = argparse.ArgumentParser(prog="conda")
    run = parser.add_subparsers(required=True).add_parser("run")
    run.add_argument("-n", "--name")
    run.add_argument("--no-capture-output", "--live-stream", action="store_true")
    run.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as script:
        script.write(f"export CONDA_DEFAULT_ENV={shlex.quote(args.name or 'base')}\n")
        script.write(shlex.join(args.command) + "\n")
    try:
        if args.no_capture_output:
            return subprocess.call(["bash", script.name])
        done = subprocess.run(["bash", script.name], capture_output=True, check=False)
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.flush()
        sys.stderr.buffer.write(done.stderr)
        sys.stderr.flush()
        return done.returncode
    finally:
        os.unlink(script.name)


if __name__ == "__main__":
    code = main()
    sys.exit(code if code >= 0 else 128 - code)
