from __future__ import annotations

import pytest

from watchdog_train.evidence.redact import (
    HIDDEN,
    redact_argv,
    redact_environment,
    redact_text,
)


@pytest.mark.parametrize(
    "secret",
    [
        "https://user:hunter22@host/path",
        "HF_TOKEN=hunter22secret",
        "api_key: hunter22secret",
        '{"password": "hunter22secret"}',
        "Authorization: Bearer hunter22secretxyz",
        "https://h/x?X-Amz-Signature=hunter22&b=1",
    ],
)
def test_secrets_are_removed(secret):
    """No line keeps what looks like a secret."""
    assert "hunter22" not in redact_text(secret)
    assert HIDDEN in redact_text(secret)


@pytest.mark.parametrize(
    "line", ["step 3 loss 0.12", "tokens_per_second: 123456", "max_new_tokens=1024000", "a@b.c"]
)
def test_ordinary_lines_stay(line):
    """What is no secret is left as it is."""
    assert redact_text(line) == line


def test_command_lines_lose_the_values_of_secret_flags():
    """Both forms of a flag; harmless flags with `token` in their name stay."""
    argv = ["t.py", "--hub-token", "hunter22", "--api_key=hunter22", "--max-tokens", "10"]
    assert redact_argv(argv) == (
        "t.py", "--hub-token", HIDDEN, f"--api_key={HIDDEN}", "--max-tokens", "10",
    )  # fmt: skip


def test_an_environment_keeps_named_variables_only():
    """A secret-looking name keeps its name alone, others are not there."""
    env = {"RANK": "0", "WANDB_API_KEY": "hunter22", "HOME": "/root"}
    assert redact_environment(env, ["RANK", "WANDB_API_KEY"]) == {
        "RANK": "0",
        "WANDB_API_KEY": HIDDEN,
    }
