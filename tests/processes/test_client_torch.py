"""The client inside PyTorch: it sees steps, batches, saves and workers, and changes nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.client_runs import Training, answered
from tests.support import free_port, wait_until
from watchdog_train.client import layout
from watchdog_train.store.slots import read_saves, read_slots

PLAIN = """
import hashlib, json, sys
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): return torch.full((4,), float(index)) + torch.rand(4)

def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=3, shuffle=True, num_workers=int(sys.argv[1]),
        multiprocessing_context=sys.argv[2] if len(sys.argv) > 2 else None)
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save(model.state_dict(), "model.pt")
    state = torch.load("model.pt")
    digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in state.values())).hexdigest()
    print(json.dumps([losses, digest, torch.rand(1).item()]))

if __name__ == "__main__":
    main()
"""

SHOW = """
    import atexit
    from watchdog_train.client import slot
    print(json.dumps(list(slot.words[:43])))
"""


def test_a_training_gives_the_same_bits_with_and_without_us(training: Training) -> None:
    """Losses, weights and the random state after it are bit-equal; nothing else is printed."""
    with_us = training.run(PLAIN, "0")
    without = training.alone(PLAIN, "0")
    assert (with_us.stdout, with_us.stderr) == (without.stdout, without.stderr)
    (save,) = training.saves()
    assert save.path == str(training.root / "model.pt")
    assert (save.format, save.step) == ("torch", 4)
    size, mtime_ns = save.files["model.pt"]
    found = (training.root / "model.pt").stat()
    assert size == found.st_size
    assert mtime_ns <= found.st_mtime_ns  # the run without us has written it again


def test_a_plain_loop_is_seen(training: Training) -> None:
    """Optimizer steps, backward passes, batches, saves and the phase are in the slot."""
    words = training.json(PLAIN + SHOW, "0")
    assert words[layout.W_MAGIC] == layout.MAGIC
    counts = (layout.W_OPTIMIZER_STEPS, layout.W_MICRO_BATCHES, layout.W_BATCHES)
    assert [words[count] for count in counts] == [4, 4, 4]
    arrivals = [words[word] for word in layout.ARRIVAL_WORDS]
    assert 0 < arrivals[0] < arrivals[1] < arrivals[2] < words[layout.W_LAST_BEAT_NS]
    assert words[layout.W_SAVES_BEGUN] == words[layout.W_SAVES_ENDED] == 1
    assert words[layout.W_PHASE] == layout.PHASE_TRAIN
    assert words[layout.W_HOOKS_FAILED] == 0
    assert training.note()["hooks"]["torch"] == "armed"
    assert list(training.slot_dir.glob("*" + layout.SLOT_SUFFIX)) == []


WORKERS = """
import os, sys, torch

class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return index

def main():
    loader = torch.utils.data.DataLoader(
        Data(), num_workers=2, multiprocessing_context=sys.argv[1] if sys.argv[1:] else METHOD,
        persistent_workers=True)
    list(loader)
    print("ready", flush=True)
    sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_have_slots_of_their_own(training: Training, method: str) -> None:
    """Forked and spawned workers say so with their number, and the rank's words stay its own."""
    with training.waiting(WORKERS.replace("METHOD", repr(method)), "ready") as process:
        readings = {reading.pid: reading for reading in read_slots(training.slot_dir).readings}
        rank = readings.pop(process.pid)
        assert (rank.role, rank.rank, rank.worker) == ("rank", 0, None)
        assert rank.progress[layout.W_BATCHES - layout.W_BEATS] == 8
        workers = sorted(readings.values(), key=lambda reading: reading.worker or 0)
        assert [(w.role, w.worker) for w in workers] == [("worker", 0), ("worker", 1)]
        assert all(worker.fault_handler_signal == signal.SIGURG for worker in workers)
        os.kill(workers[1].pid, signal.SIGURG)
        dump = training.slot_dir / f"{workers[1].pid}{layout.DUMP_SUFFIX}"
        wait_until(lambda: "_worker_loop" in dump.read_text(), 5, "the worker's stacks")
    assert list(training.slot_dir.glob("*" + layout.SLOT_SUFFIX)) == []


MISHAPS = """
import copy, io, json, os, pickle, sys, threading
import torch
from watchdog_train.client import slot, layout as L
from watchdog_train.client.hooks import torch as hook
found = {}

class Bad:
    def __reduce__(self): raise KeyError("mine")
slot.words[L.W_PHASE] = L.PHASE_TRAIN
for name, act in {
    "save": lambda: torch.save(Bad(), "bad.pt"),
    "load": lambda: torch.load("nowhere.pt"),
    "backward": lambda: torch.autograd.backward(torch.ones(2, requires_grad=True) * 1),
    "loader": lambda: torch.utils.data.DataLoader([1], num_wrokers=3),
    "next": lambda: next(iter(torch.utils.data.DataLoader([Bad, 1 / 3, "x"][2:], sampler=[5]))),
}.items():
    try:
        act()
    except Exception as error:
        found[name] = type(error).__name__
    found[name + " phase"] = slot.words[L.W_PHASE]
found["balanced"] = slot.words[L.W_SAVES_BEGUN] == slot.words[L.W_SAVES_ENDED] == 1

# Saves in another thread do not change what the training thread is busy with.
seen = []
class Slow:
    def __reduce__(self):
        seen.append(slot.words[L.W_PHASE]); return (int, ())
thread = threading.Thread(target=lambda: torch.save(Slow(), io.BytesIO()))
thread.start(); thread.join()
torch.save(Slow(), io.BytesIO())
found["thread"] = seen

for function in (torch.save, torch.load, torch.autograd.backward,
                 torch.utils.data._utils.worker._worker_loop):
    assert pickle.loads(pickle.dumps(function)) is function
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
    copied.step()
found["steps of copies"] = slot.words[L.W_OPTIMIZER_STEPS]
found["threads"] = threading.active_count()
os.environ.clear(); os.chdir("/")
del sys.modules["watchdog_train"], sys.modules["watchdog_train.client.slot"]
optimizer.step()
found["after deletion"] = hook.slot.words[L.W_OPTIMIZER_STEPS]
print(json.dumps(found))
"""


def test_errors_pass_through_and_phases_are_restored(training: Training) -> None:
    """What user code raises arrives unchanged, and threads, copies and pickles work as ever."""
    found = training.json(MISHAPS)
    train = layout.PHASE_TRAIN
    assert found == {
        "save": "KeyError", "save phase": train,
        "load": "FileNotFoundError", "load phase": train,
        "backward": "RuntimeError", "backward phase": train,
        "loader": "TypeError", "loader phase": train,
        "next": "IndexError", "next phase": train,
        "balanced": True,
        "thread": [train, layout.PHASE_CHECKPOINT],
        "steps of copies": 2,
        "threads": 1,
        "after deletion": 3,
    }  # fmt: skip


COMPILED = """
import json, torch, torch._dynamo
from torch._dynamo.utils import counters
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())

@torch.compile(backend="eager")
def step(batch):
    optimizer.zero_grad()
    model(batch).pow(2).sum().backward()
    optimizer.step()

@torch.compile(backend="eager")
def save(batch):
    torch.autograd.backward(model(batch).pow(2).sum())
    torch.save(model.state_dict(), "m.pt")
    return batch + 1

@torch.compile(backend="eager")
def epoch(loader):
    total = 0
    for batch in loader:
        total = total + model(batch).sum()
    return total

loader = torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2)
for batch in loader:
    step(batch)
    save(batch)
epoch(loader)
print(json.dumps([sum(counters["graph_break"].values()), dict(counters["stats"])]))
"""


@pytest.mark.slow
def test_torch_compile_breaks_its_graphs_no_more_than_without_us(training: Training) -> None:
    """The number of graph breaks and of graphs is the same."""
    with_us = training.json(COMPILED)
    without = training.alone(COMPILED)
    assert with_us == json.loads(without.stdout.splitlines()[-1])
    assert with_us[0] > 0


SETTINGS = """
import json, torch, torch.multiprocessing
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return index
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(range(4))
class Mine(torch.utils.data.DataLoader):
    def __init__(self, *args, **kwargs): super().__init__(*args, num_workers=3, **kwargs)

def shape(loader):
    context = loader.multiprocessing_context
    return [loader.num_workers, context and context.get_start_method(), loader.pin_memory,
            loader.persistent_workers, loader.timeout]

made = {
    "plain": lambda: torch.utils.data.DataLoader(
        Data(), 2, num_workers=2, persistent_workers=True, prefetch_factor=3, timeout=9),
    "subclass": lambda: Mine(Data()),
    "stream": lambda: torch.utils.data.DataLoader(Stream(), num_workers=2),
    "init": lambda: torch.utils.data.DataLoader(Data(), num_workers=2, worker_init_fn=print),
    "none": lambda: torch.utils.data.DataLoader(Data()),
}
import sys
from pathlib import Path
shapes = {name: shape(make()) for name, make in made.items() if name in sys.argv[1:]}
from watchdog_train.client import slot, layout as L
print(json.dumps([shapes, torch.get_num_threads(), torch.multiprocessing.get_sharing_strategy(),
                  slot.words[L.W_SETTINGS_TAKEN]]))
"""


def applied(training: Training, settings: list[dict[str, Any]], *loaders: str) -> Any:
    training.settings = settings
    return training.json(SETTINGS, *loaders)


@pytest.mark.parametrize(
    ("loaders", "workers", "why"),
    [("plain subclass", 0, "0 workers"), ("stream", 2, "IterableDataset"), ("init", 2, "init_fn")],
)
def test_workers_are_removed_where_that_is_transparent(
    training: Training, loaders: str, workers: int, why: str
) -> None:
    """For map-style data, subclasses of the loader included; without workers a stream repeats and
    a worker_init_fn fails: left alone, and said so.
    """
    shapes, *_, taken = applied(training, [{"id": "num-workers-0"}], *loaders.split())
    assert {shape[0] for shape in shapes.values()} == {workers}
    assert workers or shapes["plain"] == [0, None, False, False, 0]
    answer = training.note()["settings"]["num-workers-0"]
    assert (taken, answer["took"]) == (not workers, not workers)
    assert why in answer["why"]


def test_every_other_setting_takes_and_reports(training: Training) -> None:
    """Bits are in the order of the plan, and the side file has the effect of each in words."""
    names = ["omp-1", "unknown-to-this-client", "spawn", "pin-memory-off", "persistent-workers-off"]
    settings = [{"id": name} for name in (*names, "file-system-sharing", "loader-timeout")]
    settings[-1]["seconds"] = 30
    shapes, threads, sharing, taken = applied(training, settings, "init", "none")
    assert shapes["init"] == [2, "spawn", False, False, 30]
    assert shapes["none"] == [0, None, False, False, 0]
    assert (threads, sharing) == (1, "file_system")
    assert taken == 0b1111101
    answers = training.note()["settings"]
    assert {name: answer["took"] for name, answer in answers.items()} == {
        setting["id"]: True for setting in settings if setting["id"] != "unknown-to-this-client"
    }
    assert "30" in answers["loader-timeout"]["why"]


@pytest.mark.slow
def test_without_mps_whoever_asks_for_it_hears_that_there_is_none(training: Training) -> None:
    """The way in which Trainer, accelerate, Lightning and most scripts choose the device.

    Simulated: a torch whose MPS is there stands in for a Mac.
    """
    training.settings = [{"id": "cpu-not-mps"}]
    script = """
import json, types, torch
from watchdog_train.client import training_settings
def there():
    return True
backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=there))
training_settings.without_mps(types.SimpleNamespace(backends=backends))
weight = torch.nn.Parameter(torch.zeros(1))
torch.optim.SGD([weight]).step()
print(json.dumps([torch.backends.mps.is_available(), backends.mps.is_available()]))
"""
    assert training.json(script) == [False, False]
    answer = training.note()["settings"]["cpu-not-mps"]
    assert answer == {"took": True, "why": "parameters are on cpu"}


def test_a_request_to_stop_reaches_a_plain_loop(training: Training) -> None:
    """should_stop() is true once asked, for a request of this attempt only, and is answered."""
    script = """
import sys, watchdog_train as w
print(w.should_stop(), flush=True)
sys.stdin.readline()
print(w.should_stop(), w.should_stop(), flush=True)
sys.stdin.readline()
"""
    with training.control() as page:
        page.request_stop()
        page.begin_attempt()
        with training.waiting(script, "False") as process:
            number = page.request_stop()
            assert answered(process) == "True True\n"
            assert training.reading().stop_answered == number == 2
            assert training.reading().can_stop


RANKS = """
import os, sys, torch, torch.distributed as dist
import watchdog_train as w
dist.init_process_group("gloo")
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.01)
step = 0
while step < 100000:
    parameter.grad = torch.ones(1)
    dist.all_reduce(parameter.grad)
    optimizer.step()
    step += 1
    if step == 5 and dist.get_rank() == 0:
        print("running", flush=True)
    if w.should_stop():
        break
last = [None, None]
dist.all_gather_object(last, step)
print(last[0] == last[1], 5 < step < 100000, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_stop_at_the_same_step(training: Training) -> None:
    """All ranks act on a request at one step, so that none waits in a collective for ever."""
    free = free_port()
    shared = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with training.control() as page:
        ranks = [
            training.start(RANKS, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)
        ]
        try:
            assert ranks[0].stdout.readline() == "running\n"
            page.request_stop()
            outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait(10)
    assert outputs == ["True True\n", "True True\n"]


SPAWNED = """
import json, torch, torch.multiprocessing
from watchdog_train.client import slot, layout as L

def train(rank, port):
    import torch.distributed as dist
    before = slot.words[L.W_ROLE]
    dist.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:" + str(port), rank=rank, world_size=2)
    words = [L.W_ROLE, L.W_RANK, L.W_WORLD_SIZE, L.W_PHASE]
    found = [before, *(slot.words[word] for word in words)]
    open("rank" + str(rank), "w").write(json.dumps(found))

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (PORT,), nprocs=2)
    print(json.dumps([json.load(open("rank" + str(rank))) for rank in range(2)]))
"""


def test_children_that_join_a_group_become_ranks(training: Training) -> None:
    """torch.multiprocessing.spawn gives children: nobody, until they join a process group."""
    ranks = training.json(SPAWNED.replace("PORT", str(free_port())))
    other, rank = layout.ROLE_OTHER, layout.ROLE_RANK
    startup = layout.PHASE_STARTUP
    assert ranks == [[other, rank, 1, 2, startup], [other, rank, 2, 2, startup]]


LONELY = """
import json, sys, torch.distributed as dist
from watchdog_train.client import slot, layout as L

class Group:
    def __init__(self):
        self.kept = dist.init_process_group

try:
    dist.init_process_group(backend="gloo", init_method="file:///none?rank=3&world_size=9",
                            rank=7, world_size=8, timeout=None, group_name=1, wrong=True)
except TypeError as error:
    raised = str(error)
words = [slot.words[word] for word in (L.W_ROLE, L.W_RANK, L.W_LOCAL_RANK, L.W_WORLD_SIZE)]
wrapped = dist.init_process_group
print(json.dumps([words, "wrong" in raised, wrapped.__name__, wrapped.__module__,
                  wrapped is dist.distributed_c10d.init_process_group]))
"""


def test_a_rank_says_its_number_before_it_meets_the_others(training: Training) -> None:
    """In a rendezvous that never ends its number is known; errors of the call pass through."""
    answer = training.json(LONELY, env={"LOCAL_RANK": "5"})
    words = [layout.ROLE_RANK, 8, 6, 8]
    assert answer == [words, True, "init_process_group", "torch.distributed.distributed_c10d", True]


ENDS = """
import json, multiprocessing as mp, os, struct, sys
from watchdog_train.client import slot, layout as L

def end(number):
    slot.open_slot()  # a forked child has none until it has something to say
    os.link(slot.slot_dir + "/%d.slot" % os.getpid(), "end%d" % number)
    if number == 1:
        raise RuntimeError("planted")
    if number == 2:
        sys.exit(3)

if __name__ == "__main__":
    children = [mp.get_context("METHOD").Process(target=end, args=(number,)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    said = [open("end%d" % number, "rb").read() for number in range(3)]
    print(json.dumps([struct.unpack_from("=64Q", words)[L.W_EXIT] for words in said]))
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_says_whether_an_exception_has_ended_it(training: Training, method: str) -> None:
    """A child of multiprocessing has its exceptions caught, and may end by os._exit."""
    ends = training.json(ENDS.replace("METHOD", method))
    assert ends == [layout.EXIT_QUIET, layout.EXIT_FAILED, layout.EXIT_FAILED]


def test_any_process_of_the_user_may_attach(training: Training) -> None:
    """With torch imported the process names any tracer, unless the user opts out."""
    script = """
import torch
from watchdog_train.client import pulse
print(pulse._allow is not None)
"""
    assert training.run(script).stdout == "True\n"
    assert training.run(script, env={layout.ENV_NO_PTRACER: "1"}).stdout == "False\n"


def test_a_checkpoint_that_the_script_loads_counts_as_resumed(training: Training) -> None:
    """A script that gets its checkpoint by argument is known to have read it, once it has."""
    training.resumes("torch", training.root / "model.pt", via="argv", step=40)
    words = training.json(PLAIN + SHOW, "0")
    assert words[layout.W_RESUMED_STEP] == 41


LOADS = """
import io, json, torch
from watchdog_train.client import layout, resume, slot
for name, value in (("ckpt.pt", 1.0), ("else.pt", 2.0)):
    torch.save([value] * 1000, name)

def resumed(source):
    slot.words[layout.W_RESUMED_STEP], resume._used = 0, False
    torch.load(source)
    return slot.words[layout.W_RESUMED_STEP]

def memory(name):
    return io.BytesIO(open(name, "rb").read())

mine = memory("ckpt.pt")
found = [resumed(mine), resumed(open("ckpt.pt", "rb")), resumed(memory("else.pt"))]
mine.write(b"x" * len(mine.getvalue()) * 2)
print(json.dumps(found))
"""


def test_a_checkpoint_that_is_read_into_memory_counts_as_loaded(training: Training) -> None:
    """By its content; the buffer stays the script's own. One of another content is another one."""
    path = training.root / "ckpt.pt"
    training.resumes("torch", path, via="env", step=40)
    assert training.json(LOADS) == [41, 41, 0]
    training.resume["step"] = None  # a name without a number, in a format that holds none
    assert training.json(LOADS) == [1, 1, 0]
    assert path.stat().st_size == (training.root / "else.pt").stat().st_size


OPEN_FILES = """
import io, json, os, sys, tempfile, torch
from watchdog_train.client import saves
with open("plain.pt", "wb") as file:
    torch.save([1.0] * 1000, file)
    saves._settle()
    (noted,) = os.listdir(sys.argv[1])
    assert '"files": {}' in open(os.path.join(sys.argv[1], noted)).read(), "it is not closed"
    torch.save([1.5], file)
with open("atomic.tmp", "wb") as file:
    torch.save([2.0], file)
os.replace("atomic.tmp", "atomic.pt")
with open("torn.pt", "wb") as file:
    torch.save([3.0] * 1000, file)
again = open("torn.pt", "wb")
torch.save([4.0], io.BytesIO())
with tempfile.TemporaryFile() as file:
    torch.save([5.0], file)
print(json.dumps(len(saves._open_files)))
"""


NO_RECORD = {
    "a folder of its name": """
os.mkdir(os.path.join(slot.attempt_dir, "saves.%d.jsonl" % os.getpid()))
""",
    "another directory in its place": """
os.rename(slot.attempt_dir, "moved")
os.mkdir(slot.attempt_dir)
""",
}


@pytest.mark.parametrize("what", NO_RECORD)
def test_a_save_is_known_where_the_run_directory_takes_no_record(
    training: Training, what: str
) -> None:
    """Beside the slots, in memory: else a restart would know of no checkpoint."""
    before = "import os, torch\nfrom watchdog_train.client import slot"
    training.run(before + NO_RECORD[what] + "torch.save([1.0], 'ckpt.pt')")
    assert [Path(save.path).name for save in read_saves(training.slot_dir)] == ["ckpt.pt"]


INTERRUPTED = """
import json, os, signal
from watchdog_train.client import saves

def plain(number, frame):
    raise TimeoutError

class Handlers:
    def method(self, number, frame):
        raise RuntimeError

def loose(*arguments):
    raise ValueError

class Target(os.PathLike):
    def __init__(self, name, at, own=None):
        self.name, self.at, self.own, self.asked = name, at, own, 0
    def __fspath__(self):
        self.asked += 1
        if self.asked == self.at:
            if self.own:
                raise self.own
            signal.raise_signal(signal.SIGUSR1)
        return self.name

def write(content, target):
    open(target.name, "w").write(content)

save, seen = saves.recorded("torch", write, 1, "f"), []
for handler in (plain, Handlers().method, loose):
    signal.signal(signal.SIGUSR1, handler)
    target = Target(f"{handler.__name__}.pt", 1)
    try:
        save("x", target)
        seen.append("nothing")
    except Exception as error:
        seen.append(type(error).__name__)
save("x", Target("own.pt", 1, OSError()))
print(json.dumps(seen))
"""


def test_what_a_signal_handler_raises_during_our_work_reaches_the_script(
    training: Training,
) -> None:
    """As torch reports a dead worker; a finished save is recorded first. Our own errors do not."""
    assert training.json(INTERRUPTED) == ["TimeoutError", "RuntimeError", "ValueError"]
    recorded = {Path(save.path).name for save in training.saves()}
    assert recorded == {"plain.pt", "method.pt", "loose.pt"}


def test_a_save_into_an_open_file_is_recorded_when_that_is_closed(training: Training) -> None:
    """Under the name that it has then, and at once as not closed; nothing of memory."""
    training.json(OPEN_FILES, str(training.attempt_dir))
    found = {Path(save.path).name: save for save in training.saves()}
    assert {name: set(save.files) for name, save in found.items()} == {
        "plain.pt": {"plain.pt"}, "atomic.pt": {"atomic.pt"}, "torn.pt": set(),
    }  # fmt: skip
    assert len(training.saves()) == 3
    size, mtime_ns = found["plain.pt"].files["plain.pt"]
    status = (training.root / "plain.pt").stat()
    assert (size, mtime_ns) == (status.st_size, status.st_mtime_ns)


OWN_COUNT = """
import json, os, shutil, sys, torch
from watchdog_train.client import layout as L, resume, slot
wanted = resume.order()
torch.save([1.0] * 40, wanted["path"])
found = []
for loads, done, content, target in json.loads(sys.argv[1]):
    for word in (L.W_BEGAN_ANEW, L.W_CONTINUED, L.W_RESUMED_STEP):
        slot.words[word] = 0
    resume._used = resume._settled = False
    if loads:
        shutil.copy(wanted["path"], "copy")
        torch.load("copy")
    slot.words[L.W_OPTIMIZER_STEPS] = done
    resume.look_at_save(content, target)
    words = slot.words
    found.append([words[L.W_BEGAN_ANEW] > 0, words[L.W_CONTINUED] > 0, words[L.W_RESUMED_STEP]])
    if resume._used:
        os.unlink(resume._loaded_name())
print(json.dumps(found))
"""
BEGAN, GOES_ON, UNKNOWN = (True, False), (False, True), (False, False)
COUNTS = {
    "s-40.pt": [
        # What is loaded, optimizer steps done, what is saved, to which name: what that means.
        (1, 10, {"step": 10}, "s-10.pt", BEGAN, 41),  # loaded only to look at it
        (1, 40, {"step": 40}, "s-40.pt", BEGAN, 41),
        (1, 10, {"step": 50}, "s-50.pt", GOES_ON, 41),
        (1, 5, {"step": 38}, "s-38.pt", UNKNOWN, 41),  # it went back to the start of an epoch
        (1, 20, {"step": 50}, "s-50.pt", GOES_ON, 41),  # two optimizers
        (1, 10, {"weights": 1}, "s-10.pt", BEGAN, 41),  # by its name
        (1, 10, {"weights": 1}, "s-50.pt", GOES_ON, 41),
        (1, 10, {"weights": 1}, "other.pt", UNKNOWN, 41),
        (1, 9, {"step": 1}, "s-10.pt", BEGAN, 41),
        (0, 10, {"step": 10}, "s-10.pt", BEGAN, 0),
        (0, 10, {"step": 10}, "s-10.pt.tmp", BEGAN, 0),
        (0, 10, {"step": 50}, "s-50.pt", GOES_ON, 41),  # a reader of its own
        (0, 50, {"step": 50}, "s-50.pt", UNKNOWN, 0),  # it may save at other times than before
        (0, 10, {"step": 10}, "best-10.pt", UNKNOWN, 0),
        (0, 10, {"step": 10}, "s-41.pt", UNKNOWN, 0),  # its number went on
    ],
    "fold_1/last.pt": [
        (0, 10, {"step": 10}, "fold_2/last.pt", UNKNOWN, 0),
        (0, 10, {"step": 10}, "fold_0/last.pt", BEGAN, 0),
        (0, 10, {"step": 50}, "fold_1/last.pt", GOES_ON, 41),
    ],
    "step_40/state.pt": [
        (0, 10, {"step": 10}, "step_10.part/state.pt", BEGAN, 0),
        (0, 10, {"step": 10}, "tmp-step_10/state.pt", BEGAN, 0),
        (0, 10, {"step": 50}, "step_50/state.pt", GOES_ON, 41),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_the_count_at_the_first_save_tells_whether_it_resumed(
    name: str, training: Training
) -> None:
    """The training's own count, in the file or in its name; reading a file proves nothing."""
    path = training.root / name
    path.parent.mkdir(exist_ok=True)
    training.resumes("torch", path, via="env", step=40, counters={"step": 40})
    rows = COUNTS[name]
    found = training.json(OWN_COUNT, json.dumps([row[:4] for row in rows]))
    assert found == [[*row[4], row[5]] for row in rows]


BEHIND = """
import io, json, sys
import torch
from watchdog_train.client import layout, resume, slot

def before(what):
    if what == "it":
        torch.load("out/c.pt")
    if what == "the fold before":
        torch.save({"step": 30}, "out/c.pt")
    if what == "another":
        torch.save({"step": 4}, "out/best.pt")
        torch.load("out/best.pt")
    if what == "a buffer":
        buffer = io.BytesIO()
        torch.save({}, buffer)
        buffer.seek(0)
        torch.load(buffer)

torch.save({"step": 20}, "out/c.pt")
told = []
for what, content, target in json.loads(sys.argv[1]):
    slot.words[layout.W_BEGAN_ANEW] = 0
    resume._used = resume._settled = False
    before(what)
    if what == "opened":
        with open(target, "wb") as file:
            torch.save(content, file)
    else:
        torch.save(content, target)
    told.append(slot.words[layout.W_BEGAN_ANEW])
    torch.save({"step": 20}, "out/c.pt")
print(json.dumps(told))
"""


def test_a_save_behind_the_checkpoint_is_told(training: Training) -> None:
    """By the numbers of both files alone, and only of a process that has read nothing like it."""
    cases: list[tuple[str, dict[str, Any], str, int]] = [
        ("nothing", {"epoch": 1, "step": 4}, "out/c.pt", 5),
        ("nothing", {"epoch": 0, "model": {"step": 99}}, "out/c.pt.tmp", 1),
        ("opened", {"epoch": 1, "step": 4}, "out/c.pt", 5),
        ("nothing", {"epoch": 2, "step": 4}, "out/c.pt", 0),  # counted per epoch
        ("nothing", {"epoch": 1, "step": 21}, "out/c.pt", 0),  # it has a reader of its own
        ("nothing", {"epoch": 1, "step": 4}, "out/other.pt", 0),
        ("nothing", {"weights": 4}, "out/c.pt", 0),
        ("the fold before", {"epoch": 1, "step": 4}, "out/c.pt", 0),
        ("another", {"epoch": 1, "step": 4}, "out/c.pt", 0),
        ("a buffer", {"epoch": 1, "step": 4}, "out/c.pt", 0),
        ("it", {"epoch": 1, "step": 4}, "out/c.pt", 0),
        ("nothing", {"epoch": 1, "step": 4}, "out/c.pt", 0),  # the next command of a script
    ]
    (training.root / "out").mkdir()
    how = {"via": "env", "step": 20, "counters": {"step": 20, "epoch": 1}, "hold": False}
    training.resumes("torch", training.root / "out" / "c.pt", **how)
    told = training.json(BEHIND, json.dumps([case[:3] for case in cases]))
    assert told == [case[3] for case in cases]
    saved = [record for record in training.saves() if record.counters == {"epoch": 1, "step": 4}]
    assert {record.attempt for record in saved} == {1}
