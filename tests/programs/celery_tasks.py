"""A Celery worker that trains in tasks; its broker is a folder, so no server is needed.

`python celery_tasks.py train` sends a task, `hang` one that hangs at its 20th step, `wait` one that
is no training and waits for 20 s, `compute` one that computes by several threads. The worker is
started as always: `celery -A celery_tasks worker`.
"""

from __future__ import annotations

import os
import sys
import threading

import torch  # at the top, as most have it: the worker imports it before its first task
from celery import Celery

folder = os.path.join(os.getcwd(), "queue")
os.makedirs(folder, exist_ok=True)
app = Celery("celery_tasks", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": folder, "data_folder_out": folder}
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = True
big = torch.ones(2000, 2000)
if os.environ.get("WARM"):
    torch.exp(big).sum()  # by threads of OpenMP, which do not come with a fork


@app.task
def train(hang: bool = False) -> None:
    """Forty short steps; the loop is a plain one and says nothing of its end."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pause = threading.Event()
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        pause.wait(0.05)
        if hang and step == 20:
            pause.wait()
    print("the task is done", flush=True)


@app.task
def compute() -> None:
    """A training by threads of OpenMP; a process of a pool waits for those of the worker."""
    torch.exp(big).sum()
    train()


@app.task
def wait() -> None:
    """Nothing is trained, and nothing is heard of it."""
    threading.Event().wait(20.0)


if __name__ == "__main__":
    import celery_tasks as by_their_names

    if sys.argv[1] in ("wait", "compute"):
        getattr(by_their_names, sys.argv[1]).delay()
    else:
        by_their_names.train.delay(hang=sys.argv[1] == "hang")
