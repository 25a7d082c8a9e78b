"""What each case of a campaign is: a function of the seed and the case's number alone."""

from __future__ import annotations

import json
import random
from collections.abc import Container
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.moments import TROUBLE, Moment, draw
from tests.chaos.trainings import SHAPES, Shape

KEPT = Path(__file__).with_name("kept.jsonl")
"""Cases that were not survived once, one a line; a campaign begins with them."""


@dataclass(frozen=True)
class CaseSpec:
    """One case, before it is run."""

    seed: int
    number: int
    """From 1."""
    fault: str
    shape: str
    trouble: str
    moment: Moment
    checksum: str = ""
    """Of an undisturbed training; filled in before it is run."""

    def to_json(self) -> dict[str, Any]:
        """For the process that runs it."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> CaseSpec:
        """The other way round."""
        return cls(**{**fields, "moment": Moment(**fields["moment"])})

    def __str__(self) -> str:
        trouble = f", {self.trouble} at first" if self.trouble != "none" else ""
        return f"{self.fault}; {self.shape}{trouble}; {self.moment}"


def kept() -> list[CaseSpec]:
    """The cases that once failed: whole, because with one fault more a seed gives other cases."""
    return [CaseSpec.from_json(json.loads(line)) for line in KEPT.read_text("ascii").splitlines()]


def keep(spec: CaseSpec) -> None:
    """Have every campaign to come begin with it."""
    spec = replace(spec, checksum="")
    if spec not in kept():
        with KEPT.open("a", encoding="ascii") as file:
            file.write(json.dumps(spec.to_json()) + "\n")


def chosen(
    spec: CaseSpec, shapes: Container[str], faults: Container[str], *, isolated: bool
) -> CaseSpec | str:
    """The case itself; words when it cannot be tried here."""
    if spec.fault not in faults or spec.shape not in shapes:
        return "not chosen"
    if FAULTS[spec.fault].needs_isolation and not isolated:
        return "needs namespaces and mounts of its own"
    return spec


def case(
    seed: int, number: int, shapes: Container[str], faults: Container[str], *, isolated: bool
) -> CaseSpec | str:
    """Case `number` of a campaign; words when it cannot be tried here.

    Every fault comes once before any comes again, in an order by chance.
    """
    names = sorted(FAULTS)
    block, place = divmod(number - 1, len(names))
    random.Random(f"{seed}/order/{block}").shuffle(names)
    fault = FAULTS[names[place]]
    chance = random.Random(f"{seed}/{number}")
    shape = _shape(fault, shapes, chance)
    if shape is None:
        return "none of the chosen trainings has what it strikes"
    where = chance.choice(fault.where)
    spec = CaseSpec(
        seed=seed,
        number=number,
        fault=fault.name,
        shape=shape.name,
        trouble=TROUBLE.get(where, "none"),
        moment=draw(where, chance),
    )
    return chosen(spec, shapes, faults, isolated=isolated)


def _shape(fault: Fault, shapes: Container[str], chance: random.Random) -> Shape | None:
    able = [shape for shape in SHAPES.values() if shape.name in shapes and fault.applies(shape)]
    if not able:
        return None
    return chance.choices(able, [shape.weight for shape in able])[0]
