"""Remedies that change what is trained, or on which device, as data."""

from __future__ import annotations

from watchdog_train.remedies.remedy import Remedy, in_process

DEVICE = (
    Remedy(
        id="cpu-not-mps",
        kind="device",
        summary="trains on the CPU",
        env={"DISABLE_MPS": "1"},  # read by Lightning's MPSAccelerator
        in_process=in_process("cpu-not-mps", device="mps"),
        precondition='the device is chosen by asking whether MPS is there; .to("mps") stays',
        changes="rounding; the random numbers of the CPU are others",
        may_break="nothing; steps get slower",
        script_line='torch.device("cpu") in place of "mps"\n'
        "TrainingArguments(..., use_cpu=True)  # with a Trainer",
        platforms=("darwin",),
    ),
)

TRAINING = (
    Remedy(
        id="batch-halve-accumulate",
        kind="training",
        summary="halves the batch and doubles the accumulation, so that a step sees as much",
        in_process=in_process("batch-halve-accumulate"),
        precondition="an even batch; not with DeepSpeed, auto_find_batch_size, split_batches or "
        "a Trainer that groups generations, whose sizes are fixed elsewhere",
        changes="batch norm, losses with negatives of the batch, and dropout see smaller batches; "
        "the evaluation's batch is halved, too",
        may_break="nothing; steps get slower",
        script_line="half the batch_size, and optimizer.step() after twice as many batches\n"
        "TrainingArguments(..., per_device_train_batch_size=... / 2, "
        "gradient_accumulation_steps=... * 2)  # with a Trainer",
    ),
)
