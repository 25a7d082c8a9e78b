"""Fine-tunes a tiny BERT on sentence pairs with the Trainer, scored by a script of the task."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import torch
from told import note, note_start, planted
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)
SCORER = Path(__file__).with_name("score.py")


@dataclass
class DataArguments:
    max_seq_length: int = field(default=16)
    train_pairs: int = field(default=400)
    eval_pairs: int = field(default=24)
    metrics_url: str | None = field(default=None, metadata={"help": "where each log is posted"})


class Pairs(Dataset):
    """Two sentences of made-up tokens; the label says whether they begin alike."""

    def __init__(self, size: int, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(3, 90, (size, length), generator=generator)
        self.labels = (self.tokens[:, 0] % 2 == self.tokens[:, length // 2] % 2).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.002)
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


class MetricsPoster(TrainerCallback):
    """Posts each log to the team's dashboard."""

    def __init__(self, url: str) -> None:
        self.url = url

    def on_log(self, args, state, control, logs=None, **kwargs):
        body = json.dumps({"step": state.global_step, **(logs or {})}).encode()
        request = urllib.request.Request(self.url, data=body)
        with urllib.request.urlopen(request) as answer:  # HERE:case-02
            logger.info("posted: %s", answer.status)


def official_score(rows: list[tuple[int, int]]) -> float:
    """What the task's own script says of these predictions."""
    scorer = subprocess.Popen(
        [sys.executable, str(SCORER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    note("scorer", scorer.pid)
    scorer.stdin.write("".join(f"{predicted}\t{label}\n" for predicted, label in rows))
    scorer.stdin.flush()
    if not planted("input left open"):
        scorer.stdin.close()
    scorer.wait()  # HERE:case-01
    return float(scorer.stdout.read())


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    predicted = prediction.predictions.argmax(axis=1)
    rows = list(zip(predicted.tolist(), prediction.label_ids.tolist(), strict=True))
    return {"score": official_score(rows)}


def main() -> None:
    note_start()
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data, training = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO)
    set_seed(training.seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=100, intermediate_size=32, num_labels=2, **sizes)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training,
        train_dataset=Pairs(data.train_pairs, data.max_seq_length, seed=1),
        eval_dataset=Pairs(data.eval_pairs, data.max_seq_length, seed=2),
        compute_metrics=compute_metrics,
        callbacks=[MetricsPoster(data.metrics_url)] if data.metrics_url else [],
    )
    folder = Path(training.output_dir)
    last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    result = trainer.train(resume_from_checkpoint=last)
    trainer.log_metrics("train", result.metrics)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
