"""A batch script of Slurm for one training, and the lines of it that a site's own script needs.

Pure: what is asked for in, text out. The script asks for nothing that wtrain could not do again
after a requeue: the job keeps its number, so its runs keep their names.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchdog_train.errors import EXIT_RETRY_ELSEWHERE, WtrainError

EXIT_STOPPED = 77
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:@/+%\[\]-]{0,254}")
"""What may follow `#SBATCH --name=`: Slurm splits such a line as a shell does."""
_TIME = re.compile(r"\d{1,5}(-\d{1,2}(:\d{2}){0,2}|:\d{2}(:\d{2})?)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_RENDEZVOUS = re.compile(r"--(rdzv[-_](endpoint|id)|master[-_](addr|port)|node[-_]rank)(=|\Z)")
MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What is asked for."""

    name: str
    wtrain: Sequence[str]
    """How wtrain is called, by absolute paths."""
    flags: Sequence[str]
    """Of `wtrain run`, without --name, --nodes, --node-rank and --coordination."""
    command: Sequence[str]
    cwd: str
    coordination: str
    """Directory that all nodes share."""
    nodes: int = 1
    tasks_per_node: int = 1
    """More than one: srun starts each rank, without torchrun."""
    asked: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch: gpus-per-node, cpus-per-task, time, partition, account."""
    most_requeues: int = 5
    warn_s: int = 900
    """Before the time limit, for a save and the end."""
    exclude_guilty: bool = False
    """A requeued job does not get the machines with which the fault may lie."""

    def check(self) -> None:
        """Refuse what would make another script than the one that is meant.

        Raises:
            WtrainError: with exit code 78.
        """
        for name, value, least in (
            ("--nodes", self.nodes, 1),
            ("--tasks-per-node", self.tasks_per_node, 1),
            ("--requeues", self.most_requeues, 0),
            ("--warn-s", self.warn_s, 60),
        ):
            if not least <= value <= MOST:
                raise _wrong(name, str(value), f"a whole number from {least} to {MOST}")
        for name, word in self.asked.items():
            if name == "time" and not _TIME.fullmatch(word):
                raise _wrong("--time", word, "minutes, HH:MM:SS or D-HH:MM:SS")
            if not _SAFE.fullmatch(word):
                raise _wrong(f"--{name}", word, "a word that needs no quotes")

    @property
    def is_one(self) -> bool:
        """One supervisor in all: nobody has to be met."""
        return self.nodes == 1 and self.tasks_per_node == 1

    @property
    def label(self) -> str:
        """The name, as Slurm and wtrain can both use it."""
        return _UNSAFE.sub("-", self.name)[:64].strip("-.") or "run"

    @property
    def suffix(self) -> str:
        """How the name of each supervisor's run ends, in its own shell."""
        if self.is_one:
            return ""
        return "-node$SLURM_NODEID" if self.tasks_per_node == 1 else "-task$SLURM_PROCID"


def script(job: SlurmJob) -> str:
    """The whole batch script.

    Raises:
        WtrainError: see SlurmJob.check().
    """
    job.check()
    asked = {
        "job-name": job.label,
        "nodes": str(job.nodes),
        "ntasks-per-node": str(job.tasks_per_node),
        **job.asked,
        "output": "%x-%j.out",
    }
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in asked.items()),
        *_options(job),
        "# Written by `wtrain slurm`; `wtrain slurm --explain` says what each line is for.",
        "",
        f"cd {shlex.quote(job.cwd)} || exit 78",
        *_caution(job),
        *_body(job),
    ]
    return "\n".join(lines) + "\n"


def explained(job: SlurmJob) -> str:
    """Only the lines to add to a script of the site's own, each with its reason.

    Raises:
        WtrainError: see SlurmJob.check().
    """
    job.check()
    reasons = (
        "the end of the time is told to this shell alone, which asks wtrain for a save",
        "the same job is begun again, with its number",
        "what was written before a requeue stays",
    )
    lines = []
    for option, reason in zip(_options(job), reasons, strict=True):
        lines += [f"# {reason}", option]
    one = "one supervisor a node" if job.tasks_per_node == 1 else "one supervisor a task"
    lines += [
        "",
        f"# {one}; srun leaves the others alone when one ends (--kill-on-bad-exit=0, --wait=0):",
        "# they take their evidence first, and end by themselves",
        *_caution(job),
        *_body(job),
    ]
    return "\n".join(lines) + "\n"


def _options(job: SlurmJob) -> list[str]:
    return [
        f"#SBATCH --signal=B:USR1@{job.warn_s}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ]


def _caution(job: SlurmJob) -> list[str]:
    said = sorted({word.split("=")[0] for word in job.command if _RENDEZVOUS.match(word)})
    if not said:
        return []
    return [
        f"# {' '.join(said)} stays as it is after a requeue to other nodes: leave it out,",
        "# and the supervisors choose the first node and a free port themselves.",
    ]


def _body(job: SlurmJob) -> list[str]:
    wtrain = shlex.join(job.wtrain)
    restart = f"{_inner(wtrain)} restart --keep-budget"
    first = {"": "", "-node$SLURM_NODEID": "-node0"}.get(job.suffix, "-task0")
    meet = "" if job.is_one else f" --coordination {shlex.quote(job.coordination)}"
    if not job.is_one and job.tasks_per_node == 1:
        meet = f" --nodes slurm{meet}"
    if job.exclude_guilty:
        meet += ' --guilty-nodes "$guilty"'
    flags = f" {shlex.join(job.flags)}" if job.flags else ""
    places = [] if job.is_one else [f"mkdir -p -m 700 {shlex.quote(job.coordination)} || exit 78"]
    return [
        f"run={shlex.quote(job.label)}-$SLURM_JOB_ID",
        f"again=$PWD/.$run{first}.requeued  # we have asked for it: the runs can go on",
        *([] if job.is_one else [_SAID]),
        *(_GUILTY if job.exclude_guilty else []),
        *places,
        f'start=({wtrain} run --name "$run"{meet}{flags} --',
        f"  {shlex.join(job.command)})",
        'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$again" ]; then',
        f"  start=(bash -c 'exec {restart}" + f' "$0{job.suffix}"\' "$run")',
        "fi",
        'rm -f "$again"' + ("" if job.is_one else ' "$PWD/.$run".retry-*'),
        *([] if job.is_one else _TOLD_APART),
        *(_excluding(job) if job.exclude_guilty else []),
        "",
        "out_of_time= interrupted=",
        "on_time_limit() {",
        "  interrupted=1 out_of_time=1",
        f'  (timeout {job.warn_s // 2} {wtrain} save --wait "$run{first}"',
        f'   {wtrain} stop "$run{first}") &',
        "}",
        "trap on_time_limit USR1",
        "",
        'srun --kill-on-bad-exit=0 --wait=0 "${start[@]}" &',
        "step=$!",
        "while",
        "  interrupted=",
        '  wait "$step"',
        "  code=$?",
        '  [ -n "$interrupted" ]',
        "do :; done",
        "",
        "# 75: hung or lost here, worth another try; 77: stopped, because the time was over.",
        f'if [ "$code" -eq {EXIT_RETRY_ELSEWHERE} ] ||'
        + ("" if job.is_one else ' [ -e "$said" ] ||'),
        f'   {{ [ "$code" -eq {EXIT_STOPPED} ] && [ -n "$out_of_time" ]; }}; then',
        f'  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.most_requeues} ]; then',
        '    touch "$again"',
        *(_REQUEUE_WITHOUT if job.exclude_guilty else _REQUEUE),
        "  fi",
        "fi",
        *([] if job.is_one else ['rm -f "$said"']),
        *(['rm -f "$guilty"/*; rmdir "$guilty"'] if job.exclude_guilty else []),
        'exit "$code"',
    ]


_SAID = "said=$PWD/.$run.retry-${SLURM_RESTART_COUNT:-0}  # a name that no machine looked up yet"
_TOLD_APART = [
    "",
    "# srun ends with the highest code of all tasks: one that was killed (137) would hide a 75.",
    'start=(bash -c \'trap : TERM INT HUP; "$@"; code=$?',
    f'  [ $code -ne {EXIT_RETRY_ELSEWHERE} ] || : > "$0"; exit $code\' "$said" "${{start[@]}}")',
]


_REQUEUE = ['    scontrol requeue "$SLURM_JOB_ID"  # ends this script at once']
_GUILTY = [
    "guilty=$PWD/.$run.guilty  # a file for each machine with which the fault may lie",
    'mkdir -p -m 700 "$guilty" && rm -f "$guilty"/* || exit 78',
]
_REQUEUE_WITHOUT = [
    "    without=$(nodes_to_exclude)",
    "    trap : TERM  # Slurm ends this script at once, and takes the list only after that",
    '    scontrol requeue "$SLURM_JOB_ID" && [ -n "$without" ] && exclude "$without"',
]


def _excluding(job: SlurmJob) -> list[str]:
    """Functions of the shell. More than half of the job's machines are no sign of a bad machine."""
    return [
        "",
        "# What this job may not get any more: what it was told before, and the guilty machines.",
        "# Nothing where these are too many, or too few would be left: it would wait for ever.",
        "nodes_to_exclude() {",
        "  local names=() name before all",
        '  for name in $(ls "$guilty"); do',
        '    scontrol show node "$name" > /dev/null 2>&1 || name=${name%%.*}',
        '    names+=("$name")',
        "  done",
        "  [ ${#names[@]} -gt 0 ] || return",
        f"  if [ ${{#names[@]}} -gt {max(1, job.nodes // 2)} ]; then",
        '    echo "wtrain: ${names[*]}: more than half of the machines, none is excluded" >&2',
        "    return",
        "  fi",
        '  before=$(scontrol show job -o "$SLURM_JOB_ID" | grep -o " ExcNodeList=[^ ]*")',
        "  before=${before#*=}",
        '  [ "$before" = "(null)" ] && before=',
        '  all=$(IFS=,; echo "${before:+$before,}${names[*]}")',
        '  if sbatch --test-only --partition="$SLURM_JOB_PARTITION" \\',
        '       --nodes="$SLURM_JOB_NUM_NODES" --exclude="$all" "$0" > /dev/null 2>&1; then',
        '    echo "$all"',
        "  else",
        '    echo "wtrain: without $all Slurm has no nodes for this job, none is excluded" >&2',
        "  fi",
        "}",
        "exclude() {",
        "  local said",
        "  for _ in {1..20}; do",
        '    if said=$(scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="$1" 2>&1); then',
        '      echo "wtrain: excluded from this job: $1" >&2',
        "      return",
        "    fi",
        "    sleep 0.5",
        "  done",
        '  echo "wtrain: $1 could not be excluded from this job: $said" >&2',
        "}",
    ]


def _inner(words: str) -> str:
    """Words that are quoted already, inside of single quotes."""
    return words.replace("'", "'\\''")


def _wrong(option: str, value: str, wanted: str) -> WtrainError:
    return WtrainError(
        f"{option} {value[:60]!r} is not {wanted}",
        hint="wtrain slurm --help",
        reference="slurm-option",
    )
