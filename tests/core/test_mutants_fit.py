"""The mutants (scripts/mutants.toml) still fit the code, and there are enough of them."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from tests.support import REPOSITORY, TESTS

PACKAGE = REPOSITORY / "watchdog_train"
ROOMS = {
    "client", "keeper", "record", "detect", "decide", "explain", "evidence", "supervisor",
    "system", "checkpoints", "store", "face",
}  # fmt: skip


def script() -> ModuleType:
    """It has no suffix, so it is no module by its name."""
    loader = SourceFileLoader("wtrain_mutants", str(REPOSITORY / "scripts" / "mutants"))
    spec = spec_from_loader(loader.name, loader)
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


MUTANTS = script().mutants()


def test_every_mutant_fits_the_code() -> None:
    """Whether its test notices it is for the slow tier; a promise that moved is noticed here."""
    lost = [one.name for one in MUTANTS if (PACKAGE / one.file).read_text().count(one.old) != 1]
    assert lost == []
    assert [one.name for one in MUTANTS if one.old == one.new] == []
    assert max(Counter(one.name for one in MUTANTS).values()) == 1


def test_the_test_of_every_mutant_exists() -> None:
    for one in MUTANTS:
        path, _, name = one.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (TESTS / path).read_text(), one.name


def test_no_room_is_without_mutants() -> None:
    rooms = Counter(one.room for one in MUTANTS)
    assert rooms.keys() == ROOMS
    assert min(rooms.values()) >= 8
    assert rooms.total() >= 150
