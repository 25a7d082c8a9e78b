"""Layout of the heartbeat slot and the control page: the one module that both sides share.

It must import nothing, and parse on Python 3.8. Every field is an aligned
64-bit word; no field needs another one to agree with it, so there is no lock and no seqlock
(a record of several fields read while it is written was torn in 39 % of reads, a single word
in 0 of 24 million). Each progress word has one writing thread. Zero means "not set".
"""

SLOT_BYTES = 4096
SLOT_WORDS = 64
SLOT_MAX_FILES = 1024
VERSION = 1
# "WTRN" in the high half, the version in the low half; written last, when the rest is in place.
MAGIC = (0x5754524E << 32) | VERSION

# Identity (written once).
W_MAGIC = 0
W_PID = 1
W_START = 2  # process start time: clock ticks since boot on Linux, 0 elsewhere
W_ROLE = 3
W_RANK = 4  # rank + 1
W_LOCAL_RANK = 5  # local rank + 1
W_WORLD_SIZE = 6
W_ATTEMPT = 7

# Progress: each only ever grows, each written by the thread that owns it.
W_BEATS = 8  # explicit beat() calls
W_OPTIMIZER_STEPS = 9
W_FRAMEWORK_STEP = 10  # global_step of Trainer or Lightning, + 1
W_MICRO_BATCHES = 11  # backward passes
W_BATCHES = 12  # batches taken from a DataLoader
W_TICKS = 13  # progress-bar updates that moved
W_SAVES_BEGUN = 14
W_SAVES_ENDED = 15
PROGRESS_WORDS = (8, 9, 10, 11, 12, 13, 14, 15)

# Where it is.
W_TOTAL_STEPS = 16
W_PHASE = 17
W_PHASE_ENTRIES = 18
W_MILESTONE = 19
W_LAST_BEAT_NS = 20  # time.monotonic_ns() of the newest beat or hooked step; see ARRIVAL_WORDS
W_EXPECT_UNTIL_NS = 21  # monotonic ns until which silence was announced by expect()
W_PULSE = 22  # the pulse thread, 1 Hz; never counts as progress
W_SAVE_ANSWERED = 23  # last save-request sequence number acted on
W_SETTINGS_TAKEN = 24  # bit i: entry i of WTRAIN_SETTINGS is in effect
W_EXIT = 25  # EXIT_... once the interpreter ends
W_FAULT_HANDLER = 26  # signal number that dumps all threads' stacks, 0 when not registered
W_HOOKS_FAILED = 27  # number of hooks that failed; their texts are in the note file
W_WORKER = 28  # DataLoader worker id + 1
W_STOP_ANSWERED = 29
W_DUMP_ANSWERED = 30
W_CAN_BE_ASKED = 31  # bit 0: to save, bit 1: to stop
W_LOSS = 32  # IEEE double bits of the last logged loss
W_SAMPLES_PER_S = 33  # IEEE double bits
W_TRAIN_ORDINAL = 34  # which call of train() or fit() is running in this process, 1-based
W_RESUMED_STEP = 35  # step a checkpoint was resumed at, + 1, once the hook has injected it
W_FIRST_STEP = 36  # W_FRAMEWORK_STEP of the first step of the newest training; 0 before it
W_BEGAN_ANEW = 37  # a step, + 1, below the checkpoint's that it was to resume from
# Monotonic ns at which this rank came to the newest of each: by them ranks are compared.
W_BATCH_NS = 38  # it had its batch
W_BACKWARD_NS = 39  # it began a backward pass
W_BAR_OFFSET = 40  # a progress bar's count less optimizer steps, + 1; 0: no bar is the training's
W_BAR_TOTAL = 41  # how far that bar goes
W_BACKWARD_END_NS = 42
ARRIVAL_WORDS = (38, 39, 42)
W_LOCAL_WORLD = 44  # ranks that the launcher has started on this machine, where it says so
W_SAVE_REFUSED = 45  # last save-request that the ranks of several supervisors found no step for
W_STOP_REFUSED = 46
W_LOAD_BEGUN = 52  # bit 0: it has begun to load its checkpoint; bit 1: it has asked resume_path()
W_CONTINUED = 53  # 1: its own count is above the checkpoint's at its first save
W_BAR_EACH = 54  # optimizer steps for each move of that bar: several optimizers take turns; 0: one
W_DECIDING = 47  # number of the thread that has made the last beat or step, as this process has it
W_OWN_SIGNALS = 48  # bit i: code of the script itself handles signal number USER_SIGNALS[i]
USER_SIGNALS = ("SIGUSR1", "SIGUSR2")

ROLE_UNKNOWN, ROLE_LAUNCHER, ROLE_RANK, ROLE_WORKER, ROLE_OTHER = 0, 1, 2, 3, 4
ROLES = ("unknown", "launcher", "rank", "worker", "other")

# An end without a word is 0: killed, os._exit, or an exec.
EXIT_QUIET = 1  # no exception has ended the script; what it gave to sys.exit is not known here
EXIT_FAILED = 2  # an exception has

PHASES = (
    "unknown",
    "startup",
    "download",
    "load",
    "compile",
    "first_step",
    "train",
    "eval",
    "checkpoint",
    "idle",
    "finishing",
    "finished",
)
(
    PHASE_UNKNOWN,
    PHASE_STARTUP,
    PHASE_DOWNLOAD,
    PHASE_LOAD,
    PHASE_COMPILE,
    PHASE_FIRST_STEP,
    PHASE_TRAIN,
    PHASE_EVAL,
    PHASE_CHECKPOINT,
    PHASE_IDLE,
    PHASE_FINISHING,
    PHASE_FINISHED,
) = range(12)

# The control page: one per run, written by the supervisor, mapped read-only by the client.
CONTROL_FILE = "control"
CONTROL_BYTES = 4096
C_MAGIC = 0
C_SAVE_REQUEST = 1  # sequence number; a client acts when it is larger than what it answered
C_STOP_REQUEST = 2
C_DUMP_REQUEST = 3
# Numbers that were already used up when the attempt began: requests made to an earlier attempt
# must not make a new one save, stop or dump.
C_SAVE_BASE = 4
C_STOP_BASE = 5
C_DUMP_BASE = 6
# The state of the supervisor, for readers from outside (`wtrain probe`). Words of a page that is
# there already can be written even if the memory file system is full.
C_SUPERVISOR_PID = 8
C_SUPERVISOR_START = 9
C_TURNED_NS = 10  # monotonic ns at which its loop has turned last
C_RUN_STATE = 11  # number in RUN_STATES, + 1
C_ATTEMPT = 12
C_STEP = 13  # newest step of any rank, + 1
C_PROGRESSED_NS = 14  # monotonic ns of the newest progress of any rank
C_TRAINS = 15  # 1: steps are being made, and nothing is suspected
C_TASKS = 16  # supervisors of the job, each with a page of its own; 0 or 1: this is the only one
C_WAITS = 64  # from here on text, for probes: what a silent training waits for, and until when
WAITS_BYTES = 512  # with zeros behind it

RUN_STATES = (
    "idle",
    "starting",
    "running",
    "collecting",
    "stopping",
    "killing",
    "backoff",
    "finished",
)

# By these names scripts keep their progress in the dictionary that they save.
STEP_NAMES = ("global_step", "step", "iteration", "iter_num", "iter", "steps", "train_step")
EPOCH_NAMES = ("epoch", "current_epoch")
MOST_COUNTED = 1 << 53

SLOT_SUFFIX = ".slot"
NOTE_SUFFIX = ".note.json"
DUMP_SUFFIX = ".dump.txt"
EXCEPTION_SUFFIX = ".exception.json"
# torch's worker server of a rank listens here: the slot directory is private.
SOCKET_SUFFIX = ".sock"
# In the attempt's folder; torch elastic writes it.
ELASTIC_ERROR = "elastic-error.json"
# In the attempt's folder; NCCL appends the rank.
RECORDER_PREFIX = "flight-recorder-rank"
# Ranks of one supervisor agree here on the step at which a request is acted on (see control.py).
AGREE_PREFIX = "agree-"

# Programs and modules that start ranks instead of being one.
LAUNCHER_SCRIPTS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
LAUNCHER_FILES = ("/torch/distributed/run.py", "/torch/distributed/launch.py")
LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
)

STEP_DAEMON = "slurmstepd"  # starts the tasks of srun, and jobs of sbatch

# Environment of a supervised training.
ENV_RUN_ID = "WTRAIN_RUN_ID"
ENV_TOKEN = "WTRAIN_TOKEN"  # noqa: S105 - the name of a variable
ENV_SCOPE = "WTRAIN_SCOPE"
ENV_RUN_DIR = "WTRAIN_RUN_DIR"
ENV_ATTEMPT = "WTRAIN_ATTEMPT"
ENV_RESUME_FROM = "WTRAIN_RESUME_FROM"
ENV_SLOT_DIR = "WTRAIN_SLOT_DIR"
ENV_SETTINGS = "WTRAIN_SETTINGS"  # JSON list of {"id", ...} applied in process, in bit order
# JSON {"via","format","path","step","output_dir","ordinal","recorded"}
ENV_RESUME_HOOK = "WTRAIN_RESUME_HOOK"
ENV_ATTEMPT_DIR = "WTRAIN_ATTEMPT_DIR"  # where the client appends saves.<pid>.jsonl
# JSON {"ranks": [{stream: where that rank may write}, by local rank], "own": {stream: [device,
# inode] of the keeper's own}}; only a launcher that writes to the latter uses it.
ENV_RANK_STREAMS = "WTRAIN_RANK_STREAMS"
ENV_HEARTBEAT = "WTRAIN_HEARTBEAT"  # "N SECONDS": a line every N steps; monotonic s of the launch
ENV_KEEPER = "WTRAIN_KEEPER"  # pid, start, Slurm job (0: none) of the ancestor of all processes
ENV_NO_WORKER_SERVER = "WTRAIN_NO_WORKER_SERVER"  # 1: no worker server of torch in the ranks
ENV_NO_PTRACER = "WTRAIN_NO_PTRACER"  # 1: do not allow any process of this user to attach


def step_of(words):
    # type: (list[int] | tuple[int, ...]) -> int | None
    """The newest step of a process by the words of its slot, None before the first."""
    if words[W_FRAMEWORK_STEP]:
        return words[W_FRAMEWORK_STEP] - 1
    # A Trainer that resumes at step 50 has made one optimizer step before it says 51.
    if words[W_TRAIN_ORDINAL] or not words[W_OPTIMIZER_STEPS]:
        return None
    done = words[W_OPTIMIZER_STEPS] // (words[W_BAR_EACH] or 1)
    if words[W_BAR_OFFSET]:
        return done + words[W_BAR_OFFSET] - 1
    # A plain loop's count begins again in every process, after the checkpoint that it resumed from.
    return done + (0 if words[W_BEGAN_ANEW] else max(0, words[W_RESUMED_STEP] - 1))
