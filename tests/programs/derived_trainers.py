"""Trainers that derive from the one of transformers, on tiny random models; stuck once if asked to.

--mode seq2seq    Seq2SeqTrainer, which generates in its evaluations
--mode sft        trl's SFTTrainer
--mode dpo        trl's DPOTrainer
--mode sentence   SentenceTransformerTrainer
--mode sft-dpo    both of trl, one after the other, each into a directory; stuck in the second
--mode same-dir   the same into one directory, where their checkpoints have the same names

Nothing is downloaded and nothing here resumes by itself. Every training prints where it began and
where it ended.
"""

from __future__ import annotations

import argparse
import time

import datasets
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from zoo import once

WORDS = ("[PAD]", "[UNK]", "[EOS]", *(f"w{number}" for number in range(29)))
COMMON = {
    "save_steps": 5, "eval_steps": 5, "eval_strategy": "steps", "logging_steps": 5, "report_to": [],
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "disable_tqdm": True,
    "use_cpu": True, "seed": 3,
}  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words, of which there are few."""
    words = {word: number for number, word in enumerate(WORDS)}
    bare = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
    )


def sentence(number: int, length: int = 4) -> str:
    return " ".join(f"w{(number * step) % 29}" for step in range(1, length + 1))


def rows(count: int, **columns: int) -> datasets.Dataset:
    """So many rows of sentences; a column's number makes them differ."""
    return datasets.Dataset.from_dict(
        {name: [sentence(n + seed) for n in range(count)] for name, seed in columns.items()}
    )


def gpt2() -> transformers.GPT2LMHeadModel:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=len(WORDS), n_positions=32, n_embd=8, n_layer=1, n_head=1,
            bos_token_id=2, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def seq2seq(out: str, steps: int, callbacks: list) -> transformers.Trainer:
    config = transformers.T5Config(
        vocab_size=len(WORDS), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    arguments = transformers.Seq2SeqTrainingArguments(
        out, max_steps=steps, predict_with_generate=True, generation_max_length=6, **COMMON
    )
    token, data = tokenizer(), []
    for number in range(32):
        ids = token(sentence(number))["input_ids"]
        data.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids})
    return transformers.Seq2SeqTrainer(
        transformers.T5ForConditionalGeneration(config), arguments, train_dataset=data,
        eval_dataset=data[:4], callbacks=callbacks,
        data_collator=transformers.DataCollatorForSeq2Seq(token),
        # Without a metric nothing is generated: the loss alone is wanted then.
        compute_metrics=lambda predicted: {"length": float(predicted.predictions.shape[1])},
    )  # fmt: skip


def sft(out: str, steps: int, callbacks: list) -> transformers.Trainer:
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        gpt2(), SFTConfig(out, max_steps=steps, max_length=16, **COMMON, bf16=False),
        train_dataset=rows(32, text=1), eval_dataset=rows(4, text=2), processing_class=tokenizer(),
        callbacks=callbacks,
    )  # fmt: skip


def dpo(out: str, steps: int, callbacks: list) -> transformers.Trainer:
    from trl import DPOConfig, DPOTrainer

    columns = {"prompt": 1, "chosen": 2, "rejected": 3}
    return DPOTrainer(
        gpt2(), gpt2(), DPOConfig(out, max_steps=steps, max_length=24, **COMMON, bf16=False),
        train_dataset=rows(32, **columns), eval_dataset=rows(4, **columns),
        processing_class=tokenizer(), callbacks=callbacks,
    )  # fmt: skip


def sentence_transformer(out: str, steps: int, callbacks: list) -> transformers.Trainer:
    import sentence_transformers
    from sentence_transformers import losses
    from sentence_transformers.models import Pooling, Transformer

    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained("tiny-bert")
    tokenizer().save_pretrained("tiny-bert")
    words = Transformer("tiny-bert", max_seq_length=16)
    model = sentence_transformers.SentenceTransformer(
        modules=[words, Pooling(8)], device="cpu"
    )  # fmt: skip
    return sentence_transformers.SentenceTransformerTrainer(
        model,
        sentence_transformers.SentenceTransformerTrainingArguments(out, max_steps=steps, **COMMON),
        train_dataset=rows(32, anchor=1, positive=2), eval_dataset=rows(4, anchor=1, positive=2),
        loss=losses.MultipleNegativesRankingLoss(model), callbacks=callbacks,
    )  # fmt: skip


KINDS = {"seq2seq": seq2seq, "sft": sft, "dpo": dpo, "sentence": sentence_transformer}


def make(kind: str, out: str, steps: int, callbacks: list) -> transformers.Trainer:
    """A Trainer of this kind, made alike every time."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    return KINDS[kind](out, steps, callbacks)


class Follow(TrainerCallback):
    """Says where a training begins, and sleeps for good at a step, once."""

    def __init__(self, kind: str, hang_at: int) -> None:
        self.kind = kind
        self.hang_at = hang_at

    def on_train_begin(self, args, state, control, **kwargs):
        print(f"{self.kind}: begins at {state.global_step}", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.hang_at and once("hung-once"):
            print(f"{self.kind}: stuck", flush=True)
            while True:
                time.sleep(3600)


def train(kind: str, out: str, steps: int, hang_at: int) -> None:
    trainer = make(kind, out, steps, [Follow(kind, hang_at)])
    trainer.train()
    total = sum(p.double().sum().item() for p in trainer.model.parameters())
    print(f"{kind}: ended at {trainer.state.global_step}, sum {total:.9f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True, choices=[*KINDS, "sft-dpo", "same-dir"])
    parser.add_argument("--hang-at", type=int, default=13)
    args = parser.parse_args()
    if args.mode in ("sft-dpo", "same-dir"):
        same = args.mode == "same-dir"
        train("sft", "out" if same else "sft-out", 10, hang_at=-1)
        train("dpo", "out", 15, args.hang_at)
    else:
        train(args.mode, "out", 15, args.hang_at)
    print(f"finished {args.mode}", flush=True)


if __name__ == "__main__":
    main()
