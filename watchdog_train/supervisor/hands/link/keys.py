"""The key of a job: whoever has it may join the job, and could pose as its leader."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from watchdog_train.errors import WtrainError
from watchdog_train.trusted_files import open_read


class LinkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that carries a link is to do; the first that a supervisor tells it."""

    address: str
    """As ZeroMQ writes it."""
    key: str
    leads: bool


VARIABLE = "WTRAIN_JOB_KEY"
_KEY = re.compile(r"[0-9a-f]{64}")
_PASTE = f"""put this into the job's script, before the first task starts:
    export {VARIABLE}=$(wtrain key)
or name a file there that only you can read, by its whole path"""


def new_key() -> str:
    """A new one."""
    return secrets.token_hex(32)


def job_key(environment: Mapping[str, str]) -> str:
    """The key that a job was given.

    Raises:
        WtrainError: there is none, it is no key, or others can read its file.
    """
    given = environment.get(VARIABLE, "").strip()
    if not given:
        raise _refusal("several machines need a key, and there is none")
    if os.path.isabs(given):
        given = _read(given)
    if _KEY.fullmatch(given) is None:
        raise _refusal("this is no key: a key has 64 digits of 0-9a-f, as `wtrain key` prints them")
    return given


def _read(path: str) -> str:
    try:
        with open_read(path, follow=True, trusted=True) as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise _refusal(f"others can read the key: chmod 600 {path}")
            return file.read(1024).decode("ascii", "replace").strip()
    except OSError as error:
        raise _refusal(f"the key cannot be read: {error.strerror}: {path}") from error


def secret_of(key: str, whose: str) -> bytes:
    """The secret half of the leader's key pair, or of that which all agents share."""
    return blake2b(
        whose.encode(), key=bytes.fromhex(key), digest_size=32, person=b"wtrain job"
    ).digest()


def _refusal(message: str) -> WtrainError:
    return WtrainError(message, context=VARIABLE, hint=_PASTE, reference="job-key")
