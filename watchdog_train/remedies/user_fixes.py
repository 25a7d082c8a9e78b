"""What only the user can mend, and what every attempt has, by remedy id. Words only."""

from __future__ import annotations

from collections.abc import Mapping

USER_FIXES: Mapping[str, str] = {
    "abort-all-on-failure": "End every rank when one fails: start with torchrun, which does that, "
    "and let exceptions leave main() instead of catching them on one rank.",
    "bf16": "Compute in bf16 instead of fp16 where the device has it: TrainingArguments(..., "
    'fp16=False, bf16=True), Trainer(precision="bf16-mixed") of Lightning, or torch.autocast(..., '
    "dtype=torch.bfloat16) without a GradScaler.",
    "bigger-shm": "Give the container more shared memory: docker run --shm-size=8g (or "
    "--ipc=host), or an emptyDir with medium: Memory at /dev/shm in Kubernetes.",
    "destroy-process-group": "Call torch.distributed.destroy_process_group() on every rank before "
    "main() ends.",
    "drop-last": "Give every rank as many batches: DataLoader(..., drop_last=True), or "
    "TrainingArguments(..., dataloader_drop_last=True).",
    "less-host-memory": "Use less memory on the host: fewer workers, a smaller prefetch_factor, "
    "streaming data, keep_in_memory=False, writer_batch_size=100 in datasets.map.",
    "lightning-ddp": 'Name the strategy: Trainer(..., strategy="ddp"). In Lightning 2.6 auto is '
    "the same in a script; in a notebook, where auto forks, ddp is refused: run it as a script.",
    "local-cache": "Keep caches and data on a local disk: HF_HOME, TORCH_EXTENSIONS_DIR, "
    "TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR below /tmp or a scratch disk.",
    "main-guard": 'Put the start of the script below `if __name__ == "__main__":`, because spawned '
    "processes import the script again.",
    "none-user-fix": "Only the code can change this: see the frames in the stack dump.",
    "open-in-worker": "Open the file in the worker, not before the fork: in __getitem__ "
    "(`if self.file is None: self.file = h5py.File(...)`) or in worker_init_fn.",
    "other-node": "Run on another machine: this one's GPU or driver is at fault.",
    "persistent-workers": "Keep workers between epochs: DataLoader(..., persistent_workers=True).",
    "preprocess-before-launch": "Prepare the data once in a run of its own (python prepare.py) "
    "and let every rank load the result.",
    "rank-env-check": "Check RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every node: each "
    "rank must be there exactly once, and all must name the same address.",
    "save-on-all-ranks": "Call the save on every rank: take `if rank == 0:` away from around "
    "state_dict() and save_checkpoint(); only the writing may be rank 0's.",
    "sharded-state-dict": "Save sharded: StateDictType.SHARDED_STATE_DICT, or "
    "torch.distributed.checkpoint.",
    "single-process": "Run on one process to see whether the code or the communication is to "
    "blame: CUDA_VISIBLE_DEVICES=0 python train.py.",
    "upgrade-library": "Upgrade the library that the explanation names: later versions have "
    "mended this hang.",
}

ALWAYS: Mapping[str, str] = {
    "bounded-join-kill": "A training that is over and whose exit hangs is ended after its limit "
    "(phase finishing) and counts as a success.",
    "free-port": "torchrun and accelerate get a free port in every attempt, and a MASTER_PORT that "
    "somebody has taken is replaced; a script that names its own port must ask for another.",
    "fresh-rendezvous": "torchrun gets a new rendezvous id in every attempt, and its shared store, "
    "by which its own restarts meet dead ranks, is off.",
}
"""Part of every attempt, by remedy id: nothing to apply, nothing to allow."""
