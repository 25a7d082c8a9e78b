"""Checkpoints of every format for scripts/bench/checkpoints, small, by the libraries themselves.

Where a library cannot be run here (DeepSpeed, Megatron, PEFT, ultralytics, timm) its files are
written in its layout and order by torch.save, safetensors and DCP: "layout" in the table.
All tensors hold the number of the step, so that a mixture of two saves can be told.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

warnings.filterwarnings("ignore")
COUNT = 16
LENGTH = [4096]
"""Numbers in each tensor; the kills use more."""


@dataclass(frozen=True)
class Maker:
    """How one format is made and read back."""

    name: str
    by: str
    save: Callable[[Path, int], Path]
    """Saves the state of a step below a directory; gives the checkpoint."""
    read: Callable[[Path], set[float]] | None = None
    """Every different number in it, None where it is not killed."""


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {f"w{number}": torch.full((LENGTH[0],), float(step)) for number in range(COUNT)}


def _numbers(value: Any) -> set[float]:
    if isinstance(value, torch.Tensor):
        return set(value.float().unique().tolist())
    if isinstance(value, dict):
        return set().union(*map(_numbers, value.values())) if value else set()
    return set()


def _state(step: int) -> dict[str, Any]:
    return {"model": tensors(step), "optimizer": tensors(step)}


def _loaded(path: Path) -> set[float]:
    return _numbers(torch.load(path, weights_only=False))


def _torch(parent: Path, step: int) -> Path:
    path = parent / f"step-{step}.pt"
    torch.save(_state(step), path)
    return path


def _legacy(parent: Path, step: int) -> Path:
    path = parent / f"step-{step}.pt"
    torch.save(_state(step), path, _use_new_zipfile_serialization=False)
    return path


def _safetensors(parent: Path, step: int) -> Path:
    path = parent / f"step-{step}.safetensors"
    save_file(tensors(step), path)
    return path


def _shards(folder: Path, step: int, name: str = "model") -> None:
    names = sorted(tensors(step))
    halves = (names[: COUNT // 2], names[COUNT // 2 :])
    weights = {}
    for number, half in enumerate(halves, start=1):
        shard = f"{name}-{number:05d}-of-00002.safetensors"
        save_file({key: tensors(step)[key] for key in half}, folder / shard)
        weights |= dict.fromkeys(half, shard)
    index = {"metadata": {}, "weight_map": weights}
    (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index))


def _sharded(parent: Path, step: int) -> Path:
    folder = parent / f"step-{step}"
    folder.mkdir(exist_ok=True)
    _shards(folder, step)
    return folder


def _read_sharded(folder: Path) -> set[float]:
    shards = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return set().union(*(_numbers(load_file(folder / name)) for name in set(shards.values())))


class Weights(torch.nn.Module):
    """Something a Trainer and an Accelerator can save."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in tensors(0).items():
            setattr(self, name, torch.nn.Parameter(value))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": sum(p.sum() for p in self.parameters()) + x.sum()}


def fill(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Weights and momenta become the number of the step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(step))
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step)),
                "exp_avg": torch.full_like(parameter, float(step)),
                "exp_avg_sq": torch.full_like(parameter, float(step)),
            }


@cache
def _trainer(output: str, _length: int) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    arguments = transformers.TrainingArguments(output_dir=output, report_to=[], use_cpu=True)
    trainer = transformers.Trainer(model=Weights(), args=arguments, train_dataset=[])
    trainer.create_optimizer_and_scheduler(100)
    return trainer


def _hf(parent: Path, step: int) -> Path:
    trainer = _trainer(str(parent), LENGTH[0])
    fill(trainer.model, trainer.optimizer, step)
    trainer.state.global_step = step
    trainer._save_checkpoint(trainer.model, trial=None)  # noqa: SLF001 - there is no other way
    return parent / f"checkpoint-{step}"


def _read_hf(folder: Path) -> set[float]:
    told = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    found = _numbers(load_file(folder / "model.safetensors"))
    state = torch.load(folder / "optimizer.pt", weights_only=False)["state"]
    return found | _numbers(state) | {float(told)}


def _other_weights(folder: Path, write: Callable[[], None]) -> Path:
    """The Trainer's checkpoint with other weights, the witness still the newest file."""
    (folder / "model.safetensors").unlink()
    write()
    witness = folder / "trainer_state.json"
    witness.write_bytes(witness.read_bytes())
    return folder


def _hf_sharded(parent: Path, step: int) -> Path:
    folder = _hf(parent, step)
    return _other_weights(folder, lambda: _shards(folder, step))


def _hf_peft(parent: Path, step: int) -> Path:
    folder = _hf(parent, step)

    def write() -> None:
        save_file(tensors(step), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')

    return _other_weights(folder, write)


def _zero(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"module": tensors(step)}, folder / "mp_rank_00_model_states.pt")
    for rank in range(2):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": tensors(step)}, folder / name)


def _hf_deepspeed(parent: Path, step: int) -> Path:
    folder = _hf(parent, step)

    def write() -> None:
        for name in ("optimizer.pt", "scheduler.pt"):
            (folder / name).unlink()
        _zero(folder / f"global_step{step}", step)
        (folder / "latest").write_text(f"global_step{step}")

    return _other_weights(folder, write)


def _dcp_into(folder: Path, step: int) -> Path:
    from torch.distributed import checkpoint

    checkpoint.save(tensors(step), checkpoint_id=folder, no_dist=True)
    return folder


def _hf_fsdp(parent: Path, step: int) -> Path:
    folder = _hf(parent, step)

    def write() -> None:
        (folder / "optimizer.pt").unlink()
        _dcp_into(folder / "pytorch_model_fsdp_0", step)
        _dcp_into(folder / "optimizer_0", step)

    return _other_weights(folder, write)


def _lightning_at(path: Path, step: int) -> Path:
    from lightning.fabric.plugins import TorchCheckpointIO

    content = {
        "epoch": 0,
        "global_step": step,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": tensors(step),
        "loops": {},
        "callbacks": {},
        "optimizer_states": [tensors(step)],
        "lr_schedulers": [],
    }
    TorchCheckpointIO().save_checkpoint(content, path)
    return path


def _read_lightning(path: Path) -> set[float]:
    content = torch.load(path, weights_only=False)
    states = {"state": content["state_dict"], "optimizer": content["optimizer_states"][0]}
    return _numbers(states) | {float(content["global_step"])}


@cache
def _accelerator(_length: int) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Weights()
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters()))


def _accelerate(parent: Path, step: int) -> Path:
    accelerator, model, optimizer = _accelerator(LENGTH[0])
    fill(model, optimizer.optimizer, step)
    folder = parent / f"step_{step}"
    accelerator.save_state(str(folder))
    return folder


def _read_accelerate(folder: Path) -> set[float]:
    state = torch.load(folder / "optimizer.bin", weights_only=False)["state"]
    return _numbers(load_file(folder / "model.safetensors")) | _numbers(state)


def _read_dcp(folder: Path) -> set[float]:
    from torch.distributed import checkpoint

    found = tensors(-1)
    checkpoint.load(found, checkpoint_id=folder, no_dist=True)
    return _numbers(found)


def _deepspeed(parent: Path, step: int) -> Path:
    folder = parent / f"global_step{step}"
    _zero(folder, step)
    (parent / "latest").write_text(folder.name)
    return folder


def _read_deepspeed(folder: Path) -> set[float]:
    return set().union(*map(_loaded, folder.glob("*.pt")))


def _megatron(parent: Path, step: int) -> Path:
    folder = parent / f"iter_{step:07d}"
    for part in ("mp_rank_00", "mp_rank_01"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        torch.save(_state(step), folder / part / "model_optim_rng.pt")
    (parent / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def _megatron_dist(parent: Path, step: int) -> Path:
    folder = _dcp_into(parent / f"iter_{step:07d}", step)
    torch.save({"step": step}, folder / "common.pt")
    described = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(described))
    (parent / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def _timm(parent: Path, step: int) -> Path:
    content = {"epoch": step, "arch": "x", "optimizer": tensors(step), "version": 2}
    torch.save({**content, "state_dict": tensors(step)}, parent / "tmp.pth.tar")
    os.replace(parent / "tmp.pth.tar", parent / "last.pth.tar")
    path = parent / f"checkpoint-{step}.pth.tar"
    if path.exists():
        path.unlink()
    os.link(parent / "last.pth.tar", path)
    return parent / "last.pth.tar"


def _ultralytics(parent: Path, step: int) -> Path:
    import io

    buffer = io.BytesIO()
    content = {"epoch": step, "best_fitness": 0.1, "ema": tensors(step), "updates": step}
    torch.save({**content, "optimizer": tensors(step)}, buffer)
    for path in (parent / "last.pt", parent / f"epoch{step}.pt"):
        path.write_bytes(buffer.getvalue())
    return parent / "last.pt"


MAKERS = (
    Maker("torch.save zip, nanoGPT", "torch", _torch, _loaded),
    Maker("torch.save legacy", "torch", _legacy, _loaded),
    Maker("safetensors", "safetensors", _safetensors, lambda path: _numbers(load_file(path))),
    Maker("safetensors with index", "safetensors", _sharded, _read_sharded),
    Maker("HF Trainer", "transformers", _hf, _read_hf),
    Maker("HF sharded", "layout", _hf_sharded),
    Maker("HF with PEFT adapter", "layout", _hf_peft),
    Maker("HF with DeepSpeed inside", "layout", _hf_deepspeed),
    Maker("HF with FSDP inside", "layout, DCP by torch", _hf_fsdp),
    Maker(
        "Lightning",
        "lightning",
        lambda parent, step: _lightning_at(parent / f"epoch=0-step={step}.ckpt", step),
        _read_lightning,
    ),
    Maker(
        "Lightning hpc",
        "lightning",
        lambda parent, step: _lightning_at(parent / f"hpc_ckpt_{step}.ckpt", step),
        _read_lightning,
    ),
    Maker("accelerate", "accelerate", _accelerate, _read_accelerate),
    Maker(
        "DCP, torchtitan",
        "torch",
        lambda parent, step: _dcp_into(parent / f"step-{step}", step),
        _read_dcp,
    ),
    Maker("DeepSpeed", "layout", _deepspeed, _read_deepspeed),
    Maker("Megatron", "layout", _megatron),
    Maker("Megatron dist", "layout, DCP by torch", _megatron_dist),
    Maker("timm", "layout", _timm, _loaded),
    Maker("ultralytics", "layout", _ultralytics, _loaded),
)
