"""Remedies of loading and preparing data, as data."""

from __future__ import annotations

from watchdog_train.core.recovery.remedies import RemedySpec, variables

LOADING = (
    RemedySpec(
        id="num-workers-0",
        summary="loads data in the main process",
        precondition="map-style datasets without a worker_init_fn of the script's; iterable ones "
        "with one worker, or of the library datasets. Others stay as they are",
        changes="augmentation draws from the main process; iterable datasets change their order",
        may_break="nothing; loading no longer overlaps with computing, so steps may get slower",
        script_line="DataLoader(..., num_workers=0)\n"
        "TrainingArguments(..., dataloader_num_workers=0)  # with a Trainer",
    ),
    RemedySpec(
        id="num-workers-1",
        summary="loads data with one worker",
        precondition="map-style datasets of a DataLoader with several workers",
        changes="random augmentation draws from the generator of one worker",
        may_break="nothing; loading may get slower",
        script_line="DataLoader(..., num_workers=1)\n"
        "TrainingArguments(..., dataloader_num_workers=1)  # with a Trainer",
    ),
    RemedySpec(
        id="spawn",
        summary="starts loader workers by spawn instead of fork",
        precondition="a DataLoader with workers",
        may_break="datasets that cannot be pickled, and scripts without a __main__ guard",
        script_line='DataLoader(..., multiprocessing_context="spawn")',
    ),
    RemedySpec(
        id="pin-memory-off",
        summary="does without the pinning thread",
        precondition="a DataLoader with pin_memory=True",
        may_break="nothing; copies to the GPU no longer overlap",
        script_line="DataLoader(..., pin_memory=False)\n"
        "TrainingArguments(..., dataloader_pin_memory=False)  # with a Trainer",
    ),
    RemedySpec(
        id="persistent-workers-off",
        summary="starts loader workers anew for every epoch",
        precondition="a DataLoader with persistent_workers=True",
        may_break="caches that a dataset keeps in its workers; every epoch starts later",
        script_line="DataLoader(..., persistent_workers=False)\n"
        "TrainingArguments(..., dataloader_persistent_workers=False)  # with a Trainer",
    ),
    RemedySpec(
        id="loader-timeout",
        summary="lets a silent loader worker end the attempt with an error",
        parameters={"seconds": 300},
        precondition="a DataLoader with workers and without a timeout",
        may_break="a batch that takes longer than 300 s becomes an error",
        script_line="DataLoader(..., timeout=300)",
    ),
    RemedySpec(
        id="file-system-sharing",
        summary="shares tensors between processes by named files",
        may_break="killed processes leave segments in /dev/shm; wtrain removes those of its run",
        script_line='torch.multiprocessing.set_sharing_strategy("file_system")',
        platforms=("linux", "darwin"),
    ),
    RemedySpec(
        id="num-proc-none",
        summary="maps and filters datasets in the main process, writing in small parts",
        parameters={"writer_batch_size": 100},
        precondition="map or filter of the library datasets; the batch size of a map stays",
        may_break="nothing; preprocessing takes longer, and what was cached is prepared again",
        script_line="dataset.map(..., num_proc=None, writer_batch_size=100)",
    ),
    RemedySpec(
        id="tokenizers-off",
        summary="switches the tokenizers' own threads off",
        **variables(TOKENIZERS_PARALLELISM="false"),
        may_break="nothing; tokenising in the main process gets slower",
    ),
    RemedySpec(
        id="tokenizers-slow",
        summary="takes tokenizers without threads of their own",
        precondition="transformers 4 and a model with a slow tokenizer; else use tokenizers-off",
        changes="a slow tokenizer may split some texts in another way",
        may_break="nothing; tokenising takes much longer, what the slow one refuses stays fast",
        script_line="AutoTokenizer.from_pretrained(..., use_fast=False)",
    ),
    RemedySpec(
        id="safetensors-off",
        summary="reads and writes weights without safetensors",
        precondition="a model with other weights (pytorch_model.bin); saves by transformers 4",
        may_break="nothing; such files are pickles, so only those of somebody you trust",
        script_line="AutoModel.from_pretrained(..., use_safetensors=False)\n"
        "TrainingArguments(..., save_safetensors=False)  # with a Trainer of transformers 4",
    ),
    RemedySpec(
        id="hf-offline",
        summary="takes models and data from the local cache only",
        **variables(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1"),
        precondition="the cache is complete; it is taken back when training cannot begin with it",
        changes="nothing, as long as the cache holds the same revision",
        may_break="whatever is not in the cache",
    ),
    RemedySpec(
        id="hub-timeouts",
        summary="gives up on a server of the hub that is silent for 30 s",
        **variables(HF_HUB_ETAG_TIMEOUT="30", HF_HUB_DOWNLOAD_TIMEOUT="30"),
        precondition="huggingface_hub, whose own limit is 10 s; each retry may take as long again",
        changes="nothing: a file in the cache is used when the server does not answer",
        may_break="a server that needs longer than 30 s for its first byte becomes an error",
    ),
    RemedySpec(
        id="xet-off",
        summary="downloads by plain HTTP instead of Xet",
        **variables(HF_HUB_DISABLE_XET="1"),
        may_break="nothing; large downloads may be slower",
    ),
    RemedySpec(
        id="clear-stale-lock",
        summary="removes a lock file that a dead process of this run has left",
        precondition="FileBaton of torch, SoftFileLock; only a file of a dead process of this run",
        may_break="nothing; what the dead process was writing may be incomplete",
        script_line="remove the lock file that the report names",
    ),
)
