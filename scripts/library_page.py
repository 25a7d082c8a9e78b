"""docs/frameworks.md, from the table of hooks in watchdog_train/client/libraries.py."""

from __future__ import annotations

from watchdog_train.client import libraries

HEAD = """\
# Libraries

<!-- Written by scripts/generate_docs.py from watchdog_train/client/libraries.py. -->

The script is not changed: when one of these libraries is imported, a hook is put around a few of
its functions. Each hook fails alone. Outside its range of versions it is not armed, `wtrain status`
says so, and the run is judged by what is left. Inside the range, but with a version that its tests
were not run with, it is armed and says that in its side file. Nothing is imported that the script
does not import itself.

| library | armed for | tests run with | what is seen |
|---|---|---|---|
"""

SEEN = {
    "torch": "optimizer steps, backward passes, batches, `torch.save` and `load`, workers, ranks, "
    "compilation; DDP and FSDP wrapping, TensorBoard writers as milestones",
    "safetensors": "saves and loads",
    "transformers": "Trainer: step, total, loss, evaluation, saves; it resumes, saves and stops on "
    "request. `from_pretrained` of models and tokenizers",
    "trl": "SFTTrainer, DPOTrainer: as for transformers, whose hook it is",
    "sentence_transformers": "SentenceTransformerTrainer: the same",
    "accelerate": "`Accelerator`, `prepare`, `init_trackers`, `save_state` with a record, "
    "`load_state`",
    "datasets": "`load_dataset`, `load_from_disk`, `map`, `filter`",
    "huggingface_hub": "metadata requests and downloads, as phase download",
    "filelock": "who makes a `SoftFileLock`, so that one of a dead process can be removed",
    "celery": "a worker without a task is idle, and never judged; a task is, from the first thing "
    "in it that belongs to a training",
    "wandb": "`wandb.init`, so that one experiment stays one run across attempts, and "
    "`wandb.finish`; nothing that runs while training",
    "lightning": "Trainer: as for transformers",
    "pytorch_lightning": "the same under its other name",
    "keras": "steps of `fit`, batches of `evaluate` and `predict`, on each backend; run on "
    "TensorFlow and JAX, and by hand on torch",
    "tensorflow": "batches of `tf.data` in a loop by hand; `fit` is told by Keras",
    "tqdm": "bars that move, as a sign of life",
    "python": "`argparse`: which options may take a checkpoint, for the advice after a restart",
}

TAIL = """
## Milestones

Every process keeps a short list of named places that it has entered and left: imports, arguments
parsed, loading of data, tokenizer and model, the hub's requests, `init_process_group`, wrapping in
DDP or FSDP, building of Accelerator, Trainer, LightningModule and LightningDataModule (their end is
seen within a second), `wandb.init`, the start of DataLoader workers,
first batch, first backward pass, first step, first loss, training finished, exit, and your own
`mark()`.
`wtrain status --milestones` shows them for every rank:

```text
rank 1 is inside wandb.init for 5 min 12 s; rank 0 passed it after 2.0 s
```

A plain loop without an optimizer counts as training after 8 backward passes or calls of
`torch.autograd.grad`. Where nothing of this moves (JAX, `partial_fit` of scikit-learn, numpy),
batches of a DataLoader or of `tf.data`, bars, or regular output are the steps: after 8 intervals
the limits are learned from them. Output is regular when its newest 8 to 16 intervals are about
equal, and 15 s together. [What was run](detection.md#loops-without-torch).

## Checkpoints of Lightning that hold classes

Hyperparameters kept by `save_hyperparameters()` may be classes or objects, and such a file can run
any code when it is loaded. Lightning 2.6 refuses it unless `fit(..., weights_only=False)` is said,
and the hook says that only where this run has recorded the file as its own save and it is
unchanged since, and where file and directory belong to this user and nobody else may write to
them: whoever could change it could change the script as well. Any other is not handed over, the
side file says why, and the training begins anew rather than fail at every restart. Lightning 2.1
to 2.3 cannot load such a file with torch 2.6 or newer at all: the same is said and done.

## Several trainings in one script

A checkpoint goes back only into the training it came from: the same directory, the same one of the
trainings into that directory, the same model, data length and schedule (Trainer), and once in an
attempt for each rank. Of folds, stages or tasks the one that ran when the attempt ended goes on;
those before it are trained again from their beginning, or skipped where the script skips them.
Give each a directory of its own: where two write checkpoints of the same names into one, the
earlier, trained again, writes over those of the later, which then begins anew too.

Loops over `accelerate` and plain loops are given the path by `--resume-arg` or read it from
`WTRAIN_RESUME_FROM`: no hook can do it for them.

## Explicit calls for a loop over accelerate

`WatchdogLoop` resumes, saves and stops on request, and knows the total. Outside of `wtrain run` it
counts steps and saves when it is told to, nothing else:

```python
from watchdog_train.integrations.accelerate import WatchdogLoop


def train(accelerator, model, optimizer, loader, total_steps):
    loop = WatchdogLoop(accelerator, "checkpoints", total_steps)
    loop.resume()
    while loop.step < total_steps:
        left = accelerator.skip_first_batches(loader, loop.step % len(loader))
        for batch in left:
            accelerator.backward(model(batch).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
            if loop.step_done():
                return loop.step
            if loop.step % 5 == 0:
                loop.save()
            if loop.step == total_steps:
                break
    return loop.step
```

## What the tests ran on

The versions above were run on Linux with Python 3.11 and torch 2.13.0. The oldest of each library
runs there as well, in an environment of its own (`tests/slow/test_versions.py`). wtrain's own side
and the client without torch run on Python 3.10, 3.12 and 3.13. What could not be had: CPU builds of
any other torch, and of torch for another Python, so the lower end of torch's range and the hooks
on other Pythons are not run. Of transformers 4.46 with torch 2.6 or newer the Trainer itself
cannot resume, which is why the range begins at 4.47.
"""


DERIVED = {"trl": ("transformers", "1.16.0"), "sentence_transformers": ("transformers", "6.2.0")}
"""Libraries without a hook of their own: whose it is, and the version that tests ran with."""


def library_page() -> str:
    """The whole page."""
    rows = []
    for library, seen in SEEN.items():
        if library in DERIVED:
            hook, tested_with = DERIVED[library]
            rows.append(f"| {library} | as {hook} | {tested_with} | {seen} |")
            continue
        found = [entry for entry in libraries.HOOKS.values() if entry[1] == library]
        oldest = max(entry[2] for entry in found)
        beyond = min(entry[3] for entry in found)
        tested = sorted({version for entry in found for version in entry[4]})
        armed = f"{_text(oldest)} to below {_text(beyond)}"
        rows.append(f"| {library} | {armed} | {', '.join(tested)} | {seen} |")
    missing = {entry[1] for entry in libraries.HOOKS.values()} - set(SEEN)
    if missing:
        raise SystemExit(f"scripts/library_page.py does not describe {', '.join(sorted(missing))}")
    return HEAD + "\n".join(rows) + "\n" + TAIL


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
