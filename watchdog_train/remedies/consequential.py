"""Remedies that change what is trained, or on which device, as data."""

from __future__ import annotations

from watchdog_train.remedies.remedy import Remedy, cells, in_process, variables

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
        script_line='torch.device("cpu") in place of "mps"',
        script_lines={"trainer": "TrainingArguments(..., use_cpu=True)"},
        platforms=("darwin",),
        cells=cells("hook"),
    ),
    Remedy(
        id="mps-fallback",
        kind="device",
        summary="runs operations that MPS lacks on the CPU",
        **variables("mps-fallback", PYTORCH_ENABLE_MPS_FALLBACK="1"),
        precondition="training on MPS",
        changes="rounding of those operations",
        may_break="nothing; those operations get slower",
        script_line='os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"  # before the import',
        platforms=("darwin",),
        cells=cells("environment"),
    ),
    Remedy(
        id="cpu",
        kind="device",
        summary="trains on the CPU, to see whether the device is to blame",
        env={"CUDA_VISIBLE_DEVICES": "", "DISABLE_MPS": "1"},
        in_process=in_process("cpu", device="any"),
        needs_allow=True,
        precondition='the device is chosen by asking what is there; .to("cuda") becomes an error',
        changes="rounding; the random numbers of the CPU are others",
        may_break="NCCL, fp16, kernels that need a GPU; steps get very much slower",
        script_line='CUDA_VISIBLE_DEVICES="" python train.py',
        script_lines={"trainer": "TrainingArguments(..., use_cpu=True)"},
        cells=cells("hook"),
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
        script_line="half the batch_size, and optimizer.step() after twice as many batches",
        script_lines={
            "trainer": "TrainingArguments(..., per_device_train_batch_size=... / 2, "
            "gradient_accumulation_steps=... * 2)"
        },
        cells=cells("suggestion", trainer="hook"),
    ),
    Remedy(
        id="bf16",
        kind="training",
        summary="computes in bf16 instead of fp16",
        in_process=in_process("bf16"),
        precondition="mixed precision in fp16 by the framework, on a device that has bf16",
        changes="rounding: a wider range, fewer digits; no loss scale any more",
        may_break="nothing that bf16 can run",
        script_line="torch.autocast(..., dtype=torch.bfloat16), without GradScaler",
        script_lines={"trainer": "TrainingArguments(..., fp16=False, bf16=True)"},
        cells=cells("hook", plain="suggestion"),
    ),
    Remedy(
        id="no-eval",
        kind="training",
        summary="trains without evaluation in between",
        in_process=in_process("no-eval"),
        precondition="the framework evaluates; not where saves or the learning rate hang on a "
        "metric of it",
        changes="no metrics, no best model at the end, no early stopping",
        may_break="callbacks of the script that wait for an evaluation",
        script_line="leave the evaluation out of the loop",
        script_lines={
            "trainer": 'TrainingArguments(..., eval_strategy="no", load_best_model_at_end=False)'
        },
        cells=cells("hook", plain="suggestion", accelerate="suggestion"),
    ),
    Remedy(
        id="drop-last",
        kind="training",
        summary="leaves out the last, smaller batch of an epoch",
        in_process=in_process("drop-last"),
        precondition="DataLoaders that shuffle or have a sampler of their own, and more examples "
        "than one batch",
        changes="up to one batch of every epoch is not trained on",
        may_break="nothing",
        script_line="DataLoader(..., drop_last=True)",
        script_lines={"trainer": "TrainingArguments(..., dataloader_drop_last=True)"},
        cells=cells("hook"),
    ),
    Remedy(
        id="skip-bad-batches",
        kind="training",
        summary="goes on with the next batch when one cannot be loaded, at most 100 times",
        in_process=in_process("skip-bad-batches", limit=100),
        precondition="map-style datasets and a single rank: with several one of them would end "
        "its epoch before the others",
        changes="what is skipped is not trained on, or validated with; skipped.PID.jsonl of the "
        "attempt lists every batch",
        may_break="a mistake in the dataset that spoils every batch shows 100 batches later",
        script_line="return another example from __getitem__ when one cannot be read",
        cells=cells("hook"),
    ),
    Remedy(
        id="dataset-subset",
        kind="training",
        summary="trains on a tenth of the examples",
        in_process=in_process("dataset-subset", fraction=0.1),
        precondition="a train_dataset with a length, or Lightning's limit_train_batches; for "
        "finding a cause, from the first attempt: no checkpoint of the whole data is resumed",
        changes="what is trained on",
        may_break="nothing",
        script_line="torch.utils.data.Subset(dataset, range(len(dataset) // 10))",
        script_lines={"trainer": "Trainer(..., train_dataset=train.select(range(n // 10)))"},
        cells=cells("suggestion", trainer="hook", lightning="hook"),
    ),
    Remedy(
        id="shorter-sequences",
        kind="training",
        summary="cuts sequences at half of their greatest length",
        in_process=in_process("shorter-sequences"),
        precondition="a configuration of TRL with max_length (SFTConfig, DPOConfig, ...)",
        changes="what lies beyond is not trained on",
        may_break="losses on the end of long examples have nothing left to learn from",
        script_line="tokenizer(..., truncation=True, max_length=...)",
        script_lines={"trainer": "SFTConfig(..., max_length=...)"},
        cells=cells("suggestion", trainer="hook"),
    ),
)
