"""Which remedies may be offered for what was observed, and which are shown to have helped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core import builders as b
from tests.core.test_diagnose import evidence_of
from tests.core.test_explain import FETCHING, HELD, LOADER, MAIN, REDUCE, SAVE, SERVER, process
from tests.core.test_first_failure import gone
from tests.core.test_ladder import history, step
from tests.scenarios import test_remedies as proofs
from tests.support import TESTS
from watchdog_train.core.diagnosis.facts import HostFacts, LockFact
from watchdog_train.core.model import ExceptionFact, Explanation
from watchdog_train.core.model import explanation as x
from watchdog_train.core.recovery.ladder import Restart
from watchdog_train.core.recovery.remedies import helped, tried
from watchdog_train.explain.chains import Chains
from watchdog_train.explain.explanation import explain
from watchdog_train.explain.remedies import Grounds
from watchdog_train.remedies.catalogue import CATALOGUE
from watchdog_train.remedies.user_fixes import ALWAYS, USER_FIXES
from watchdog_train.report.facts import permanent_lines, tried_lines

ALL = (*CATALOGUE, *USER_FIXES, *ALWAYS)
FREE = {"plain-retry", "lightning-ddp"}
"""Whoever names one of these has grounds: they are for a family of the user's own."""
LOADERS = {
    "num-workers-0", "num-workers-1", "loader-timeout", "persistent-workers",
    "persistent-workers-off", "spawn",
}  # fmt: skip
CODE = {"none-user-fix", "upgrade-library"}
FIFO = {"wait": "file", "call": "open", "path": "out/ckpt.pt", "kind": "fifo"}
BATON = ("wait (torch/utils/file_baton.py:1)", "_jit_compile (torch/utils/cpp_extension.py:1)")
HUB = ("read (ssl.py:1)", "_get (huggingface_hub/file_download.py:1)", *MAIN)
SLEEP = {"wait": "sleep"}
WAITS_FOR_0 = process(11, *REDUCE, rank=1)
REMEDIES = {
    "a FIFO": ([process(10, *SAVE, *MAIN, wait=FIFO), WAITS_FOR_0], set()),
    "a FIFO, beside workers": (
        [process(10, *MAIN, wait=FIFO), process(12, *FETCHING, role="worker", worker=0, ppid=10)],
        set(),
    ),
    "a stopped rank": ([process(10, *LOADER, state="T"), WAITS_FOR_0], set()),
    "a terminal": ([process(10, *MAIN, waits_for_input=True)], set()),
    "a lock of somebody who lives": ([process(10, *MAIN, wait=HELD)], set()),
    "a lock that nobody builds under": ([process(10, *BATON, *MAIN)], {"clear-stale-lock"}),
    "a lock that somebody builds under": (
        [
            process(10, *BATON, *MAIN),
            process(11, "_run_ninja_build (torch/utils/cpp_extension.py:2)", *BATON[1:], *MAIN,
                    rank=1),
        ],
        set(),
    ),
    "a server that is no hub": ([process(10, "read (ssl.py:1)", *MAIN, wait=SERVER)], set()),
    "the hub": ([process(10, *HUB, wait=SERVER)], {"hf-offline", "hub-timeouts", "xet-off"}),
    "the hub, offline already": (
        [process(10, *HUB, wait=SERVER, environment={"HF_HUB_OFFLINE": "1"})],
        {"hub-timeouts", "xet-off"},
    ),
    "a worker": (
        [process(10, *LOADER),
         process(12, *FETCHING, role="worker", worker=0, ppid=10, wait=SLEEP)],
        LOADERS,
    ),
    "a save on a local disk": (
        [process(10, *SAVE, *MAIN, state="D", wait={"wait": "disk", "path": "/o/c.pt"})],
        {"save-on-all-ranks", "sharded-state-dict"},
    ),
    "a save on a network file system": (
        [process(10, *SAVE, *MAIN, state="D",
                 wait={"wait": "disk", "path": "/o/c.pt", "network": "nfs4"})],
        {"local-cache", "save-on-all-ranks", "sharded-state-dict"},
    ),
    "a rank that sleeps": (
        [process(10, *MAIN, wait=SLEEP), WAITS_FOR_0],
        {"raise-ddp-timeout", "preprocess-before-launch"},
    ),
    "a rank that has left": (
        [gone(10, 0, code=0), process(11, *REDUCE, rank=1)], {"drop-last"},
    ),
    "a rank that evaluates": (
        [process(10, "predict (train.py:1)", *MAIN, wait=SLEEP), WAITS_FOR_0],
        {"no-eval", "raise-ddp-timeout", "preprocess-before-launch"},
    ),
    "a collective of all": (
        [process(10, *REDUCE), process(11, *REDUCE, rank=1)], {"debug-detail"},
    ),
    "an own lock": (
        [process(10, *MAIN, wait={"wait": "mutex", "address": 1}, sealed=True)], set(),
    ),
    "a lock held at the fork": (
        [process(12, *FETCHING, role="worker", worker=0, ppid=10,
                 wait={"wait": "mutex", "address": 1, "owner_lives": False}),
         process(10, *LOADER)],
        {*LOADERS, "omp-1"},
    ),
}  # fmt: skip


def explained(processes, why="stall", **more) -> tuple[x.Explanation, dict[str, x.RemedyGround]]:
    """The explanation, and what is offered where a family names all there is, with its grounds."""
    given = [one for one in processes if isinstance(one, dict)]
    evidence = evidence_of({"why": why, "processes": given})
    ended = tuple(one for one in processes if not isinstance(one, dict))
    evidence = replace(evidence, processes=(*evidence.processes, *ended), **more)
    found = explain(Chains(evidence))
    return found, {one.name: one.ground for one in Grounds(evidence, found).offered(ALL)}


@pytest.mark.parametrize("name", REMEDIES)
def test_what_may_be_offered_for_a_wait(name):
    processes, expected = REMEDIES[name]
    _, offer = explained(processes)
    assert offer.keys() - FREE - CODE == expected


ASKED_FOR = {
    "skip-bad-batches", "memory-relief", "cpu", "mps-fallback", "eval-batch", "shorter-sequences",
    "subset", "safetensors-off", "stagger-start", "celery-solo",
}  # fmt: skip
"""Of use to whoever knows the training; the ladder has no grounds for them."""


def test_every_remedy_has_grounds_or_is_in_every_attempt():
    """What everybody has already is no remedy; something calls for each that a user need not."""
    everything = ExceptionFact(
        type="E",
        message="DataLoader worker fork shared memory datasets tokenizer huggingface xet h5py NFS "
        "NCCL rendezvous uneven Traceback Timeout state_dict destroy_process_group "
        "__main__ CUDA error: Xid CUDA out of memory oom-kill OMP wandb inductor nan MPS "
        "pin memory collective Stale file handle",
        source="output",
        worker=1,
    )
    rank = process(10, *BATON, "evaluate (train.py:3)", *MAIN)
    _, offer = explained([rank], why="crash", exceptions=(everything,))
    assert set(ALL) - offer.keys() - ASKED_FOR == set(ALWAYS)


@pytest.mark.parametrize("alive", [True, False, None])
def test_a_stale_lock_is_one_whose_holder_is_dead(alive):
    waiting = process(10, "acquire (filelock/_api.py:1)", *MAIN)
    locks = () if alive is None else (LockFact(path="x.lock", owner_alive=alive),)
    _, offer = explained([waiting], locks=locks)
    assert ("clear-stale-lock" in offer) is (alive is False)
    assert "local-cache" not in offer


def test_facts_name_remedies_whatever_the_cause():
    """A full /dev/shm, the memory killer, a network file system: no family has to know of them."""
    full = HostFacts(shm_used_share=0.99)
    evidence = evidence_of({"why": "stall", "processes": [process(10, *MAIN, wait=FIFO)]})
    evidence = replace(evidence, host=full)
    found = explain(Chains(evidence))
    offer = x.Remedy(name="bigger-shm", by="fact", ground="shared-memory")
    assert Grounds(evidence, found).offered(()) == (offer,)
    killed = replace(
        evidence_of({"why": "stall", "processes": []}),
        processes=(gone(10, 0, signal=9),),
        host=HostFacts(oom_kills=1, oom_since_start=True),
    )
    found = explain(Chains(killed))
    assert [one.name for one in Grounds(killed, found).offered(())] == ["less-host-memory"]


USELESS = {
    "no worker": (process(10, *MAIN, wait=SLEEP), "num-workers-0"),
    "one thread, by a variable": (
        process(10, *MAIN, wait=SLEEP, environment={"OMP_NUM_THREADS": "1"}), "omp-1",
    ),
    "one thread": (process(10, *MAIN, wait=SLEEP, os_threads=1), "omp-1"),
    "tokenizers off already": (
        process(10, *MAIN, wait=SLEEP, environment={"TOKENIZERS_PARALLELISM": "False"}),
        "tokenizers-off",
    ),
    "somebody outside": (process(10, *MAIN, wait=FIFO), "num-proc-none"),
}  # fmt: skip


@pytest.mark.parametrize("name", USELESS)
def test_no_experiment_is_made_that_would_change_nothing(name):
    given, setting = USELESS[name]
    evidence = evidence_of({"why": "stall", "processes": [given]})
    useless = Grounds(evidence, explain(Chains(evidence))).pointless
    assert setting in useless
    unknown = b.explained(family=None)
    told = replace(unknown, pointless=useless)
    known = [use.id for use in _next(unknown)]
    assert setting in known or setting not in ("num-workers-0", "omp-1")
    assert setting not in [use.id for use in _next(told)]


def _next(told: Explanation):
    answer = step(history(("hang@5", told), ("hang@5", told)))
    assert isinstance(answer, Restart)
    assert all(use.experiment for use in answer.plan.remedies)
    return answer.plan.remedies


LOADER_CAUSE = b.explained("num-workers-0", "loader-timeout", family="dataloader-worker-stuck")
PROVEN_CAUSE = b.explained(
    "num-workers-0", "loader-timeout", family="dataloader-worker-stuck", certainty="proven"
)
OTHER_CAUSE = b.explained("hf-offline", family="hub-download")
HELPED = {
    "passed the point": ((("hang@5", PROVEN_CAUSE), "exit0@9 num-workers-0"), ["num-workers-0"]),
    "came twice without it": (
        (("hang@5", LOADER_CAUSE), ("hang@7", LOADER_CAUSE), "exit0@9 num-workers-0"),
        ["num-workers-0"],
    ),
    "hung elsewhere later": (
        (("hang@5", PROVEN_CAUSE), ("hang@50 num-workers-0", OTHER_CAUSE)), ["num-workers-0"],
    ),
    "did not come further": (
        (("hang@5", LOADER_CAUSE), ("hang@5 num-workers-0", OTHER_CAUSE)), [],
    ),
    "hung of the same later": (
        (("hang@5", LOADER_CAUSE), ("hang@50 num-workers-0", LOADER_CAUSE)), [],
    ),
    "no family has named it": ((("hang@5", OTHER_CAUSE), "exit0@9 num-workers-0"), []),
    "was there before": (
        (("hang@5 num-workers-0", LOADER_CAUSE), "exit0@9 num-workers-0"), [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HELPED)
def test_what_is_shown_to_have_helped(name):
    rows, expected = HELPED[name]
    state = history(*rows)
    assert list(helped(state)) == expected
    names = [use.id for use in tried(state)]
    assert names == ["num-workers-0"]
    assert tried_lines(state) == (
        "settings tried: num-workers-0",
        f"{'shown' if expected else 'not shown'} to have helped: num-workers-0",
    )


def test_a_hang_that_came_once_proves_no_setting():
    """Its cause is only likely: without the setting the next attempt may have passed as well."""
    state = history(("hang@5", LOADER_CAUSE), "exit0@9 num-workers-0")
    assert helped(state) == ()
    assert tried_lines(state) == (
        "settings tried: num-workers-0",
        "passed once with it, which proves little: num-workers-0",
    )
    assert not permanent_lines(state, {"num-workers-0": "DataLoader(..., num_workers=0)"})


def test_an_experiment_is_never_shown_to_have_helped():
    """Nothing called for it: that the run went on then may be chance."""
    state = history(("hang@5", LOADER_CAUSE), "exit0@9 num-workers-0")
    last = state.attempts[-1]
    uses = tuple(replace(use, experiment=True) for use in last.plan.remedies)
    plan = replace(last.plan, remedies=uses)
    last = replace(last, plan=plan)
    state = replace(state, attempts=(*state.attempts[:-1], last))
    assert helped(state) == ()
    assert tried_lines(state)[0] == "settings tried: num-workers-0 (experiment)"


def test_every_remedy_has_its_proof() -> None:
    """A real training that needs it, or one that it reaches: the tables of the scenarios."""
    tables = {*proofs.CASES, *proofs.OWN_TEST, *proofs.ONLY_ARRIVES, *proofs.ELSEWHERE}
    assert set(CATALOGUE) - {"plain-retry"} == tables
    for test in proofs.OWN_TEST.values():
        file, _, function = test.rpartition("::")
        text = (TESTS / "scenarios" / (file or "test_remedies.py")).read_text(encoding="utf-8")
        assert f"def {function}(" in text, test
