"""Where everybody is in one line, and the fingerprint of a hang."""

from __future__ import annotations

import json
import re

import msgspec

from watchdog_train.cli import main
from watchdog_train.core.diagnosis.facts import BundleVerdict, Evidence, ProcessEvidence
from watchdog_train.core.diagnosis.places import evidence_fingerprint
from watchdog_train.evidence.bundle import Bundle, write_staged
from watchdog_train.evidence.dumps import dumps
from watchdog_train.evidence.inputs import read_inputs
from watchdog_train.evidence.joint import answer
from watchdog_train.evidence.machines import read_whole
from watchdog_train.evidence.request import JointRequest
from watchdog_train.explain.judge import judge
from watchdog_train.report.evidence_text import glance
from watchdog_train.report.screen_text import one_screen

LOADER = """\
    poll (multiprocessing/connection.py:257)
    get (multiprocessing/queues.py:113)
    _try_get_data (torch/utils/data/dataloader.py:1132)
    _get_data (torch/utils/data/dataloader.py:1295)
    main (train.py:70)
"""
REDUCE = """\
    all_reduce (torch/distributed/distributed_c10d.py:2219)
    wrapper (torch/distributed/c10d_logger.py:79)
    sync (/srv/job/train.py:88)
    main (/srv/job/train.py:120)
"""


def dump(frames: str) -> str:
    return f'Thread 5 (idle): "MainThread"\n{frames}'


def evidence(**files: str) -> Evidence:
    """Of names as rank7_worker3_pid90."""
    processes = []
    for name, text in files.items():
        rank, worker, pid = (re.search(rf"{word}(\d+)", name) for word in ("rank", "worker", "pid"))
        processes.append(
            ProcessEvidence(
                pid=int(pid[1]), start=0, ppid=0, role="worker" if worker else "rank",
                rank=int(rank[1]), worker=int(worker[1]) if worker else None,
                threads=dumps(text)[0].threads, how="py-spy",
            )
        )  # fmt: skip
    return Evidence(why="manual", processes=tuple(processes))


def test_everybody_is_on_one_line():
    files = {f"rank{rank}_pid{rank + 10}": dump(REDUCE) for rank in range(7)}
    files["rank7_pid17"] = dump(LOADER)
    files["rank7_worker3_pid90"] = dump("    open (ds.py:9)\n")
    given = evidence(**files)
    in_nfs = {"state": "D", "wchan": "rpc_wait_bit_killable"}
    processes = tuple(
        msgspec.structs.replace(one, **in_nfs) if one.role == "worker" else one
        for one in given.processes
    )
    assert glance(msgspec.structs.replace(given, processes=processes)) == (
        "ranks 0-6: torch.all_reduce (train.py:88) | rank 7: torch._try_get_data (train.py:70) | "
        "rank 7's worker 3: open (ds.py:9), in the kernel (rpc_wait_bit_killable)"
    )


def test_dead_and_stopped_processes_are_on_the_line():
    """A process needs no stack to be somewhere."""
    processes = tuple(
        ProcessEvidence(pid=rank + 1, start=1, ppid=0, role="rank", rank=rank, state=state)
        for rank, state in enumerate("ZT")
    )
    found = glance(Evidence(why="manual", processes=processes))
    assert found == "rank 0: dead | rank 1: stopped"


def test_the_fingerprint_ignores_lines_paths_and_pids():
    """The same hang of another version on another machine; another hang differs."""
    first = evidence(rank0_pid1=dump(LOADER))
    moved = LOADER.replace(":1132", ":1243").replace("torch/", "/v/site-packages/torch/")
    second = evidence(rank0_pid901=dump(moved))
    other = evidence(rank0_pid1=dump(REDUCE))
    prints = [evidence_fingerprint(one, None) for one in (first, second, other)]
    assert prints[0] == prints[1] != prints[2]


def bundle_in(folder, given: Evidence, at: float, name: str = "") -> None:
    found = judge(given)
    verdict = BundleVerdict(
        id=folder.name, why="manual", at=at, hostname=name,
        fingerprint=evidence_fingerprint(given, found.family),
    )  # fmt: skip
    write_staged(folder, Bundle(verdict=verdict, explanation=found, evidence=given))


def test_a_bundle_of_several_machines_is_read_as_one(tmp_path):
    """Under the explanation of all of them; alone the leader's rank would look guilty."""
    folder = tmp_path / "0001"
    parts = {folder: ("n0", evidence(rank0_pid1=dump(REDUCE)))}
    parts[folder / "machines" / "node1"] = ("n1", evidence(rank1_pid1=dump(LOADER)))
    for place, (name, given) in parts.items():
        bundle_in(place, given, at=1.0, name=name)
    request = JointRequest(bundles=tuple(map(str, parts)))
    told = answer(request)
    assert told.explanation is not None
    whole = read_whole(folder)
    diagnosed = read_inputs([str(folder)]).evidence
    assert [one.rank for one in whole.evidence.processes] == [0, 1]
    assert [one.rank for one in diagnosed.processes] == [0, 1], "wtrain diagnose"
    assert [(one.name, one.hostname, one.ranks) for one in whole.machines] == [
        ("", "n0", (0,)),
        ("node1", "n1", (1,)),
    ]
    assert msgspec.json.encode(whole.explanation).replace(b'"n1"', b'""').replace(
        b'"n0"', b'""'
    ) == msgspec.json.encode(told.explanation)
    screen = one_screen(
        whole.verdict, whole.explanation, whole.evidence, machines=["node1 (n1): rank 1"]
    )
    assert "on      node1 (n1): rank 1" in screen
    assert read_whole(tmp_path) is None


def test_our_own_bundle_is_diagnosed_like_its_collector_did(tmp_path, capsys):
    folder = tmp_path / "0001"
    bundle_in(folder, evidence(rank0_pid1=dump(REDUCE), rank1_pid2=dump(LOADER)), 100.0)
    stored = json.loads((folder / "explanation.json").read_text())
    assert main.run(["diagnose", str(folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["family"] == stored["because"]["family"]
    assert answer["explanation"]["root"]["who"]["rank"] == 1
