"""What is known as a secret is gone wherever it stands; ordinary output of a training stays."""

from __future__ import annotations

import json
import os
import re
import string
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from watchdog_train.evidence import redact
from watchdog_train.evidence.redact import HIDDEN, redact_argv, redact_data, redact_text

WORD = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
BASE64 = WORD + "+/"


def some(alphabet: str, length: int, most: int | None = None) -> st.SearchStrategy[str]:
    return st.text(st.sampled_from(alphabet), min_size=length, max_size=most or length)


SECRET = some(WORD, 12, 40).map(lambda text: f"Zq7{text}")
"""No other text of a test holds it by chance."""
SHAPES = [
    some(WORD, 34).map("hf_{}".format),
    some(WORD, 36).map("ghp_{}".format),
    some(WORD, 60).map("github_pat_{}".format),
    some(WORD, 20).map("glpat-{}".format),
    some(WORD + "-_", 40).map("sk-proj-{}".format),
    some(string.ascii_uppercase + string.digits, 16).map("AKIA{}".format),
    some(WORD + "-_", 35).map("AIza{}".format),
    some(WORD + "-", 30).map("xoxb-{}".format),
    some(HEX, 40),
    some(WORD, 80).map("wandb_v1_{}".format),
    st.tuples(some("123456789", 9), some(WORD + "-_", 35)).map(":".join),
    st.tuples(some(WORD, 20), some(WORD, 40), some(WORD, 20)).map(lambda t: "eyJ" + ".".join(t)),
    some(BASE64, 60).map("eyJ{}==".format),
]
FORMS = [
    "password={}",
    "PASSWORD: {}",
    "passphrase = '{}'",
    'api_key="{}"',
    "{{'secret': '{}', 'lr': 0.1}}",
    '{{"private_key": "{} and more"}}',
    r"{{\"password\": \"{}\"}}",
    'password="""{}"""',
    "export WANDB_API_KEY={}",
    "--auth {}",
    "--auth={}",
    "-pw {}",
    "--passphrase '{}'",
    "model.hub.access_key={}",
    "https://user:{}@host:8080/path",
    "postgres://bob:a/{}@host/db",
    "https://host/x?a=b&sig={}&c=d",
    "https://hooks.slack.com/services/T0001/B0001/{}",
    "https://discord.com/api/webhooks/12345/{}",
    "https://acme.webhook.office.com/webhookb2/{}/IncomingWebhook/x",
    "slack://{}/x/y",
    "Cookie: a=b; session={}; c=d",
    "{{'Set-Cookie': 'sid={}; Path=/'}}",
    "Authorization: Bearer {}",
    "authorization: Digest username=bob, response={}",
    "send: b'GET / HTTP/1.1\\r\\nAuthorization: Basic {}\\r\\n'",
    "curl -H 'X-Api-Key: {}' -u bob:{} https://host",
    'wandb.login("{}")',
    "login(user='bob', key=b'{}', relogin=True)",
    'login(\n    "{}",\n)',
    'requests.get(url, auth=("bob", "{}"))',
    "{{'tokens_of_hub': ['short', '{}'], 'lr': 1}}",
    '{{"username": "bob", "key": "00000{}"}}',
    "docker login -u bob -p {} host",
    "cannot log in with passphrase {}",
]


SECRET_NAMES = """
    WANDB_TOKEN admin_token login-token openai_api_key new_password token_secret MIN_SECRET my_auth
    hub_tokens notepad_token token_idp_secret AUTHORIZATION DB_PASS_PHRASE_SECRET
"""
OTHER_NAMES = """
    PWD OLDPWD XAUTHORITY SSH_AUTH_SOCK HF_TOKEN_PATH AUTHOR author_name TOKENIZERS_PARALLELISM
    max_new_tokens num-input-tokens token_type_ids eos_token --pad-token tokens prompt_tokens
    tokens_per_second AWS_DEFAULT_REGION WTRAIN_TOKEN_FILE
"""
BEFORE = st.one_of(st.text(max_size=30), st.sampled_from(["step 3 loss 0.1 ", "[rank0]: ", "\n"]))
BEFORE = BEFORE.map(lambda text: text + " ")
AFTER = st.text(max_size=30).map(lambda text: "\n" + text)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30)
@given(secret=SECRET, before=BEFORE, after=AFTER)
def test_a_secret_of_a_known_form_never_survives(form, secret, before, after):
    text = before + form.replace("{}", secret).replace("{{", "{").replace("}}", "}") + after
    once = redact_text(text)
    assert secret not in once
    assert once.count("\n") == text.count("\n"), "lines stay lines"
    assert secret not in redact_text(repr(text)), "as a repr in a log"
    assert secret not in json.dumps(redact_data({"why": [text]}))
    assert redact_text(once) == once, "a second time changes nothing"


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@settings(max_examples=30)
@given(data=st.data(), before=BEFORE.filter(lambda text: "commit" not in text), after=AFTER)
def test_a_known_token_never_survives(shape, data, before, after):
    token = data.draw(SHAPES[shape])
    assert token not in redact_text(before + token + after)
    assert token not in redact_text(repr(f"{before}\n{token}\n"))
    assert token not in " ".join(redact_argv(["train.py", token, f"--x={token}"]))


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_secret_name_is_one_whatever_else_is_in_it(name):
    assert redact.is_secret_name(name)
    for text in (f"{name}=Zq7secret", f"'{name}': 'Zq7secret'", f"--{name} Zq7secret"):
        assert "Zq7secret" not in redact_text(text)
    assert "Zq7secret" not in " ".join(redact_argv([f"--{name}", "Zq7secret"]))


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_other_names_are_not_secret(name):
    assert not redact.is_secret_name(name)
    assert redact_text(f"{name}=Zq7value") == f"{name}=Zq7value"


OPTIONS = [
    "--auth",
    "-pw",
    "--pw",
    "--hub_token",
    "--db-passphrase",
    "--key",
    "--webhook",
    "--cookie",
]


@given(st.sampled_from(OPTIONS), SECRET, st.booleans())
def test_no_secret_option_of_a_command_line_keeps_its_value(option, secret, joined):
    argv = [f"{option}={secret}"] if joined else [option, secret]
    kept = redact_argv(["python", "train.py", *argv, "--lr", "0.1"])
    assert secret not in " ".join(kept)
    assert kept[:2] == ("python", "train.py")
    assert kept[-2:] == ("--lr", "0.1")
    assert redact_data({"command": ["x", option, secret]}) == {"command": ["x", option, HIDDEN]}


@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=8, max_size=40), BEFORE, AFTER)
@example("a b\"c'd\\e", "", "")
def test_a_value_of_a_secret_variable_never_survives(value, before, after):
    """In any of the ways in which it is written; also where its name is not beside it."""
    value = value.strip().replace("\0", "")
    if len(value) < 8 or not value.isprintable():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redact, "_known", redact._Known())
        redact.learn({"MY_SECRET": value, "PWD": "/somewhere", "COLUMNS": "80"})
        for written in (value, quote(value, safe=""), json.dumps(value)):
            assert written not in redact_text(f"{before}{written}{after}")
        assert redact_text("/somewhere 80") == "/somewhere 80"


BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
KEY_LINES = st.lists(some(BASE64, 64), min_size=2, max_size=30)


@given(KEY_LINES, st.sampled_from(["", "[rank0]: ", "2026-01-01 INFO "]), st.data())
def test_no_line_of_a_private_key_survives(lines, prefix, data):
    """Also where a window on a log has its beginning, or its end, or it is one line of JSON."""
    block = [prefix + line for line in (BEGIN, *lines, END)]
    first = data.draw(st.sampled_from([0, 0, 1]))
    last = data.draw(st.integers(2, len(block))) if first == 0 else len(block)
    text = "\n".join(["before 1", *block[first:last], "after 2"])
    kept = redact_text(text)
    assert not any(line in kept for line in lines)
    assert kept.startswith("before 1\n")
    assert kept.endswith("after 2")
    assert len(kept.split("\n")) == len(text.split("\n"))
    whole = json.dumps({"k": "\n".join([BEGIN, *lines, END]), "lr": 1})
    assert not any(line in redact_text(whole) for line in lines)
    assert '"lr": 1' in redact_text(whole)


@pytest.mark.parametrize(
    "line",
    [
        "step 3 loss 0.12 lr 1e-4 grad_norm: 1.5 tokens_per_second: 123456",
        "max_new_tokens=1024000 eos_token='<|endoftext|>' pad_token_id: 50256 tokens=8192",
        "Epoch 3: 100%|██████| 10/10 [00:01<00:00, 9.1it/s, loss=0.5, v_num=3]",
        "/hub/models--x/snapshots/0123456789abcdef0123456789abcdef01234567/modeling.py:31",
        "HEAD is now at 0123456789abcdef0123456789abcdef01234567",
        "'revision': '0123456789abcdef0123456789abcdef01234567'",
        "https://github.com/a/b/commit/0123456789abcdef0123456789abcdef01234567",
        "md5 0123456789abcdef0123456789abcdef, cache-0123456789abcdef.arrow",
        '  File "/a/authors/tokenizer.py", line 3, in authenticate',
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
        "Unexpected key(s) in state_dict: module.layer1.0.conv1.weight",
        "text_key: content, sort_key=loss, PWD=/root/x, use_auth_token=None",
        "def __init__(self, token: str, secret: bytes) -> None:",
        "Author: Bob <a@b.c>, password required, Basic training begins",
        "RuntimeError: NCCL error at git@github.com:a/b.git https://host:8080/path?step=3&lr=0.1",
        "tokens: ['Hello', 'world'], prompt_tokens=[101, 2023], key: 'layer1', basic PyTorch",
        "AssertionError: expected torch.Size([8, 128]) but got torch.Size([8, 127])",
    ],
)
def test_ordinary_output_stays(line):
    assert redact_text(line) == line
    assert redact_data({"line": line}) == {"line": line}


def test_what_names_a_commit_stays_on_a_command_line():
    argv = ("t.py", "--revision", "0123456789abcdef0123456789abcdef01234567", "--max-tokens", "10")
    assert redact_argv(argv) == argv


def test_an_environment_keeps_named_variables_only():
    """A secret-looking name keeps its name alone, others are not there."""
    environment = {"RANK": "0", "WANDB_API_KEY": "hunter22", "HOME": "/root"}
    kept = redact.redact_environment(environment, ["RANK", "WANDB_API_KEY"])
    assert kept == {"RANK": "0", "WANDB_API_KEY": HIDDEN}


@pytest.mark.parametrize(
    "part",
    ["token=", BEGIN + "\n", "https://a:", "login('", "hooks/", "eyJ", "a" * 50, "-u a:", "\\" * 9,
     "password is ", "1" * 40, '"', "'''", "Cookie: ", "--key ", "login -",
     "token=['", "'key': 'a", "password" + " " * 999],
)  # fmt: skip
def test_hostile_text_costs_no_more_than_its_length(part):
    """200 kB of what a pattern begins with; a log may hold anything."""
    began = time.process_time()
    redact_text(part * (200_000 // len(part)))
    assert time.process_time() - began < 5


def test_evidence_reaches_a_disk_by_the_redactor_alone(tmp_path):
    """bundle.py copies what is written so."""
    redact.write_text(tmp_path / "text", "password=hunter22secret")
    redact.write_json(tmp_path / "json", {"password": "hunter22secret"})
    assert "hunter22" not in (tmp_path / "text").read_text() + (tmp_path / "json").read_text()
    folder = Path(redact.__file__).parent
    writers = re.compile(r"replace_(?:whole|json)\(|write_bytes\(|\bopen\([^)]*[\"'][wax]b?[\"']")
    using = {path.name for path in folder.rglob("*.py") if writers.search(path.read_text())}
    assert using == {"redact.py", "bundle.py"}


def test_the_own_environment_is_known_from_the_start():
    assert all(value in redact._known.values for name, value in os.environ.items()
               if redact.is_secret_name(name) and len(value) >= 8 and value.isalnum())  # fmt: skip
