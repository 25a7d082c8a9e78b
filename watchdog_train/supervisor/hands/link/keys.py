"""The key of a job: whoever has it may join the job, and could pose as its leader."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Mapping
from hashlib import blake2b

from watchdog_train.errors import WtrainError
from watchdog_train.trusted_files import open_read

VARIABLE = "WTRAIN_JOB_KEY"
_PASTE = f"""put this into the job's script, before the first task starts:
    export {VARIABLE}=$(wtrain key)
or name a file there that only you can read, by its whole path"""


def job_key(environment: Mapping[str, str]) -> str:
    """The key that a job was given, or whose file it was given.

    Raises:
        WtrainError: there is none, it is no key, or others can read its file.
    """
    given = environment.get(VARIABLE, "").strip()
    why = "a key has 64 digits of 0-9a-f" if given else "several machines need a key"
    if os.path.isabs(given):
        try:
            with open_read(given, follow=True, trusted=True) as file:
                if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    why = f"others can read the key: chmod 600 {given}"
                else:
                    given = file.read(1024).decode("ascii", "replace").strip()
        except OSError as error:
            why = f"the key cannot be read: {error.strerror}: {given}"
    is_key = re.fullmatch(r"[0-9a-f]{64}", given) is not None
    if is_key and _is_guessable(given):
        is_key, why = False, "anybody could guess this key: take a random one"
    if not is_key:
        raise WtrainError(why, context=VARIABLE, hint=_PASTE, reference="job-key")
    return given


def _is_guessable(key: str) -> bool:
    """Few digits, a repeated text, or numbers in a row: a random key is never like that."""
    steps = {(b - a) % 256 for a, b in itertools.pairwise(bytes.fromhex(key))}
    return len(set(key)) < 8 or key in (key + key)[1:-1] or len(steps) < 8


def secret_of(key: str, whose: str) -> bytes:
    """The secret half of the leader's key pair, or of that which all agents share."""
    return blake2b(whose.encode(), key=bytes.fromhex(key), digest_size=32).digest()
