"""Saves into step_N.part/ and renames that to step_N/, or names its saves by epoch and step.

Fails twice after saves. With "epochs" the dictionary holds an epoch and the step within it, and
another training, which nobody watches, saves into the same folder.
"""

from __future__ import annotations

import argparse
import os
import signal

from zoo import Training, once

PER_EPOCH = 10


class Renamed(Training):
    """Each save is complete once its folder has its last name."""

    def save(self) -> None:
        folder = f"{self.out}/step_{self.step:05d}"
        os.makedirs(f"{folder}.part")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.torch.save({**state, "step": self.step}, f"{folder}.part/state.pt")
        os.rename(f"{folder}.part", folder)


class Epochs(Training):
    """The step begins again in every epoch, and the dictionary has no other."""

    def save(self) -> None:
        os.makedirs(self.out, exist_ok=True)
        epoch, step = divmod(self.step, PER_EPOCH)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        path = f"{self.out}/epoch{epoch}-step{step}.pt"
        self.torch.save({**state, "epoch": epoch, "step": step}, path)
        stranger = f"{self.out}/epoch{70 + self.step}-step0.pt"
        with open(path, "rb") as own, open(stranger, "wb") as other:
            other.write(own.read())

    def resume(self, path: str | None) -> None:
        if path:
            state = self.torch.load(path)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["epoch"] * PER_EPOCH + state["step"]
            print(f"resumed at step {self.step}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("rename", "epochs"))
    parser.add_argument("--resume")
    args = parser.parse_args()
    training = Renamed(0.02) if args.how == "rename" else Epochs(0.02)
    training.resume(args.resume)
    for at in (8, 13):
        training.train(at)
        if once(f"failed-at-{at}"):
            if args.how == "rename":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("planted failure")
    training.train(20)
    training.finish()


if __name__ == "__main__":
    main()
