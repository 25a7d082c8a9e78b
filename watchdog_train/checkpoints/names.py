"""What the numbers in the name of a checkpoint count. Dates do; scores, sizes and seeds do not."""

from __future__ import annotations

import re

import msgspec

from watchdog_train.core.model import Value

_DATE = re.compile(
    r"(?<!\d)(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_.T ]+(?:[01]\d|2[0-3])(?:[-_.]?[0-5]\d[-_.]?[0-5]\d|[:h][0-5]\d(?:[:m][0-5]\d)?))?"
    r"(?!\d)"
)
_TOKEN = re.compile(r"[A-Za-z]+|\d+(?:\.\d+)?[eE]-\d+|\d+\.\d+|\d+|[^A-Za-z0-9]+")
_SCORE_WITH_DIGIT = re.compile(
    r"(?i)(?<![a-z0-9])(f1|r2|(top|map|bleu|rouge|recall|hits?)@?\d+)(?!\d)"
)
_EPOCH = re.compile(r".*(epoch|episode)s?|e|ep")
_STAGE = re.compile(r"(stage|phase|fold|round|cycle|version|run|trial|task|gen|generation)s?|v")
_STEP = re.compile(
    r".*(step|iter|iteration|update|batch|batche|sample|token|frame|image|tick)s?|its?|ba|gs|kimg"
)
_STEP_LETTERS = ("s", "i", "b", "t", "u")
"""Only with the number right behind: e1s20."""
_GENERIC = ("ckpt", "checkpoint", "model", "weights", "save", "saved", "state", "snapshot", "net")
_NO_COUNT = frozenset(
    (
        "acc", "accuracy", "auc", "bleu", "cer", "cider", "dice", "er", "err", "error", "fid",
        "iou", "kl", "loss", "mae", "map", "mcc", "metric", "miou", "mse", "pearson", "perplexity",
        "ppl", "precision", "psnr", "recall", "ret", "return", "returns", "reward", "rewards",
        "rmse", "rouge", "score", "ssim", "top", "val", "valid", "validation", "wer",
        "alpha", "beta", "bits", "bs", "crop", "ctx", "d", "decay", "depth", "dim", "dp", "dropout",
        "eps", "fps", "gamma", "gpu", "gpus", "h", "head", "heads", "hidden", "img", "k", "l",
        "layer", "layers", "len", "length", "lr", "momentum", "n", "node", "nodes", "of", "p", "pp",
        "rank", "rate", "res", "seed", "shard", "size", "temp", "tp", "warmup", "wd", "width",
        "world", "ws",
    )
)  # fmt: skip
_UNITS = {"k": 1000, "m": 1_000_000}


class Numbers(Value):
    """The numbers of a name by what they count, each from left to right."""

    shape: str
    """The text around them; two names of one shape were made by one line of code."""
    dates: tuple[float, ...] = ()
    stages: tuple[float, ...] = ()
    """Of consecutive parts: stages, folds, versions."""
    epochs: tuple[float, ...] = ()
    steps: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    """Steps, and numbers without a known word, in their order in the name."""

    def beside(self, inner: Numbers) -> Numbers:
        """The numbers of a folder (self) joined with those of a name in it."""
        pairs = zip(self.__struct_fields__, msgspec.structs.astuple(inner), strict=True)
        return Numbers(**{name: getattr(self, name) + value for name, value in pairs})


def numbers_of(stem: str) -> Numbers:
    dates = [float("".join(filter(str.isdigit, match[0]))) for match in _DATE.finditer(stem)]
    text = _SCORE_WITH_DIGIT.sub("score", _DATE.sub("@", stem))
    found: dict[str, list[float]] = {"epochs": [], "stages": [], "steps": [], "counts": []}
    tokens = ["", "", *_TOKEN.findall(text), "", "", "", ""]
    for at, token in enumerate(tokens):
        if not token[:1].isdigit():
            continue
        number = float(token)
        kind = _kind(tokens[at - 2 : at], tokens[at + 1 : at + 5], token.isdigit())
        if kind in ("steps", "plain"):
            number *= _UNITS.get(tokens[at + 1].lower(), 1)
            found["counts"].append(number)
        if kind in found:
            found[kind].append(number)
    shape = re.sub(r"\d+(\.\d+)?", "#", text.lower())
    lists = {name: tuple(values) for name, values in found.items()}
    return Numbers(shape=shape, dates=tuple(dates), **lists)


def _kind(before: list[str], after: list[str], is_whole: bool) -> str | None:
    """What a number counts, by the word before it, else by the one behind it."""
    glued = before[1].isalpha()
    word = (before[1] if glued else before[0] if before[0].isalpha() else "").lower()
    touching = after[0].isalpha()
    behind = (after[0] if touching else after[1] if after[1].isalpha() else "").lower()
    if glued and len(word) == 1 and touching and behind not in _STEP_LETTERS:
        return None  # a hash
    if _EPOCH.fullmatch(word):
        return "epochs"
    if word in _NO_COUNT or not is_whole:
        return None
    if _STAGE.fullmatch(word):
        return "stages"
    if _STEP.fullmatch(word) or (glued and word in _STEP_LETTERS):
        return "steps"
    next_ones = after[1:2] if touching else after[2:]
    if not any(token[:1].isdigit() for token in next_ones):  # else it is the word of that number
        if _STEP.fullmatch(behind):
            return "steps"
        if _EPOCH.fullmatch(behind):
            return "epochs"
    if (touching and behind not in _UNITS) or (glued and word not in _GENERIC):
        return None  # resnet50, 7b
    return "plain"


def step_in_name(stem: str) -> int | None:
    found = numbers_of(stem)
    steps = found.steps[:1] or (() if found.epochs else found.counts[-1:])
    return next((int(number) for number in steps if number < 10**12), None)
