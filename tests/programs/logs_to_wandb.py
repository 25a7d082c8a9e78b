"""Logs to wandb, offline; the first attempt is killed after some steps. Two folds have one name."""

from __future__ import annotations

import os
import signal

import wandb
from zoo import Training, once

training = Training()
run = wandb.init(project="experiment", name="one")
print(f"id={run.id}", flush=True)
training.train(10)
wandb.log({"step": training.step})
run.finish()
for _ in range(2):
    fold = wandb.init(project="experiment", name="folds")
    print(f"fold={fold.id}", flush=True)
    fold.finish()
if once("killed"):
    os.kill(os.getpid(), signal.SIGKILL)
training.finish()
