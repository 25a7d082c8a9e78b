"""Remedies that change what is trained, or on which device, as data."""

from __future__ import annotations

from watchdog_train.core.recovery.remedies import RemedySpec, variables

DEVICE = (
    RemedySpec(
        id="cpu-not-mps",
        kind="device",
        summary="trains on the CPU",
        env={"DISABLE_MPS": "1"},  # read by Lightning's MPSAccelerator
        parameters={"device": "mps"},
        precondition='the device is chosen by asking whether MPS is there; .to("mps") stays',
        changes="rounding; the random numbers of the CPU are others",
        may_break="nothing; steps get slower",
        script_line='torch.device("cpu") in place of "mps"\n'
        "TrainingArguments(..., use_cpu=True)  # with a Trainer",
    ),
    RemedySpec(
        id="mps-fallback",
        kind="device",
        summary="computes on the CPU what MPS cannot",
        **variables(PYTORCH_ENABLE_MPS_FALLBACK="1"),
        precondition="training on MPS; read when torch is imported",
        changes="rounding of those operations",
        may_break="nothing; those operations get slower",
        platforms=("darwin",),
    ),
    RemedySpec(
        id="cpu",
        kind="device",
        summary="trains on the CPU, whatever device the script asks for",
        env={"CUDA_VISIBLE_DEVICES": "", "DISABLE_MPS": "1", "ACCELERATE_USE_CPU": "true"},
        needs_allow=True,
        precondition="what asks by torch in the thread that imports it, Trainer, accelerate and "
        "Lightning; not torch.Generator, weights read by safetensors to a GPU, or kernels",
        changes="rounding and random numbers are those of the CPU; no fp16; gloo for NCCL",
        may_break="code that needs a GPU; steps get much slower",
        script_line='torch.device("cpu") everywhere, and CUDA_VISIBLE_DEVICES=""\n'
        "TrainingArguments(..., use_cpu=True)  # with a Trainer",
    ),
)

TRAINING = (
    RemedySpec(
        id="skip-bad-batches",
        kind="training",
        summary="leaves out batches that cannot be read or moved, at most 100, and tells of each",
        parameters={"n": 100},
        precondition="a DataLoader of torch, and moving by accelerate, Trainer or Lightning; no "
        "iterable dataset with workers, or that ends with its first error. Counted per process and "
        "attempt. Raised are a dead worker, a lack of memory or files, a CUDA error and an epoch "
        "without a good batch",
        changes="bad examples, and those of their batch, are not learnt; several ranks and "
        "Lightning, which count batches, get another one once more",
        may_break="hides a mistake in the data",
        script_line="catch the error in the dataset's __getitem__ and return another example",
    ),
    RemedySpec(
        id="batch-halve-accumulate",
        kind="training",
        summary="halves the batch and doubles the accumulation, so that a step sees as much",
        precondition="an even batch; not with DeepSpeed, auto_find_batch_size, split_batches or "
        "a Trainer that groups generations, whose sizes are fixed elsewhere",
        changes="batch norm, losses with negatives of the batch, and dropout see smaller batches; "
        "the evaluation's batch is halved, too",
        may_break="nothing; steps get slower",
        script_line="half the batch_size, and optimizer.step() after twice as many batches\n"
        "TrainingArguments(..., per_device_train_batch_size=... / 2, "
        "gradient_accumulation_steps=... * 2)  # with a Trainer",
    ),
    RemedySpec(
        id="no-eval",
        kind="training",
        summary="trains without evaluation in between, and without loading the best model",
        precondition="a Trainer of Lightning or transformers, unless saves or schedule use metrics",
        changes="no metrics, no best model, no early stopping by them; checkpoints are the newest",
        may_break="callbacks of the script that wait for an evaluation",
        script_line="leave the evaluation out of the loop\n"
        'TrainingArguments(..., eval_strategy="no", load_best_model_at_end=False)  # Trainer\n'
        "Trainer(..., limit_val_batches=0, num_sanity_val_steps=0)  # with Lightning",
    ),
    RemedySpec(
        id="eval-batch",
        kind="training",
        summary="evaluates in batches no larger than those of the training",
        precondition="a Trainer of transformers, or a DataLoader that is iterated while gradients "
        "are off, after a first step; not with Lightning, nor several ranks of accelerate",
        changes="means over the batches of an evaluation",
        may_break="nothing; evaluations get slower",
        script_line="DataLoader(evaluation, batch_size=...)  # that of the training\n"
        "TrainingArguments(..., per_device_eval_batch_size=...)  # with a Trainer",
    ),
    RemedySpec(
        id="shorter-sequences",
        kind="training",
        summary="cuts sequences at half of the greatest length so far, in each further attempt at "
        "half of that",
        counts_attempts=True,
        precondition="a DataLoader whose batches are dicts with input_ids; attention_mask, labels "
        "and others of its shape are cut with it",
        changes="what lies beyond is neither trained on nor evaluated",
        may_break="losses on the end of long examples have less left to learn from",
        script_line="tokenizer(..., truncation=True, max_length=...)",
    ),
    RemedySpec(
        id="subset",
        kind="training",
        summary="takes the first 1000 examples, of subset=N the first N, for trials",
        parameters={"n": 1000},
        for_trials=True,
        precondition="the train_dataset of a Trainer; a DataLoader, unless it has a sampler that "
        "is not torch's. From the first attempt: no checkpoint of the whole data is resumed",
        changes="what is trained on, and what a DataLoader evaluates",
        may_break="scripts that count on the number of examples",
        script_line="torch.utils.data.Subset(dataset, range(1000))",
    ),
)
