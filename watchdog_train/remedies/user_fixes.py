"""What only the user can mend, by remedy id: the line or the setting to change. Words only."""

from __future__ import annotations

from collections.abc import Mapping

USER_FIXES: Mapping[str, str] = {
    "abort-all-on-failure": "End every rank when one fails: start with torchrun, which does that, "
    "and let exceptions leave main() instead of catching them on one rank.",
    "batch-halve-accumulate": "Halve per_device_train_batch_size and double "
    "gradient_accumulation_steps, so that their product stays the same.",
    "bf16": "Train with bf16=True instead of fp16=True, or clip gradients and lower the rate.",
    "bigger-shm": "Give the container more shared memory: docker run --shm-size=8g (or "
    "--ipc=host), or an emptyDir with medium: Memory at /dev/shm in Kubernetes.",
    "bounded-join-kill": "Training had ended and only its exit hangs: wtrain ends such a process "
    "and counts it as a success.",
    "clear-stale-lock": "Remove the named lock file once you have made sure that no process that "
    "made it is alive on any machine.",
    "cpu": "Run a few steps on the CPU (use_cpu=True in TrainingArguments) to see whether the "
    "device is to blame.",
    "destroy-process-group": "Call torch.distributed.destroy_process_group() on every rank before "
    "main() ends.",
    "drop-last": "Give every rank the same number of batches: DataLoader(..., drop_last=True) or "
    "a DistributedSampler(drop_last=True).",
    "free-port": "Choose another port: torchrun --master-port=29501, or --standalone on one node.",
    "less-host-memory": "Use less memory on the host: fewer workers, a smaller prefetch_factor, "
    "streaming data, keep_in_memory=False, writer_batch_size=100 in datasets.map.",
    "local-cache": "Keep caches and data on a local disk: HF_HOME, TORCH_EXTENSIONS_DIR, "
    "TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR below /tmp or a scratch disk.",
    "main-guard": 'Put the start of the script below `if __name__ == "__main__":`, because spawned '
    "processes import the script again.",
    "nccl-socket-ifname": "Name the network interface: NCCL_SOCKET_IFNAME=eth0 (and "
    "GLOO_SOCKET_IFNAME) on every node.",
    "no-eval": 'Train without evaluation to see whether it is to blame: eval_strategy="no", '
    "with load_best_model_at_end=False.",
    "none-user-fix": "Only the code can change this: see the frames in the diagnosis.",
    "open-in-worker": "Open the file in the worker, not before the fork: in __getitem__ "
    "(`if self.file is None: self.file = h5py.File(...)`) or in worker_init_fn.",
    "other-node": "Run on another machine: this one's GPU or driver is at fault.",
    "persistent-workers": "Keep workers between epochs: DataLoader(..., persistent_workers=True).",
    "preprocess-before-launch": "Prepare the data once in a run of its own (python prepare.py) "
    "and let every rank load the result.",
    "raise-ddp-timeout": "Give slow work on rank 0 more time: ddp_timeout=7200 in "
    "TrainingArguments, or init_process_group(timeout=timedelta(hours=2)).",
    "rank-env-check": "Check RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT on every node: each "
    "rank must be there exactly once, and all must name the same address.",
    "save-on-all-ranks": "Call the save on every rank: take `if rank == 0:` away from around "
    "state_dict() and save_checkpoint(); only the writing may be rank 0's.",
    "sharded-state-dict": "Save sharded: StateDictType.SHARDED_STATE_DICT, or "
    "torch.distributed.checkpoint.",
    "single-process": "Run on one process to see whether the code or the communication is to "
    "blame: CUDA_VISIBLE_DEVICES=0 python train.py.",
    "upgrade-library": "Upgrade the library named in the diagnosis: the hang is a known one that "
    "later versions have mended.",
}
