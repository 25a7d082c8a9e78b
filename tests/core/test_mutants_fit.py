"""The script that breaks the code by hand (scripts/mutants) still knows where to break it."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from tests.support import REPOSITORY

PACKAGE = REPOSITORY / "watchdog_train"


def script() -> ModuleType:
    """It has no suffix, so it is no module by its name."""
    loader = SourceFileLoader("wtrain_mutants", str(REPOSITORY / "scripts" / "mutants"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_every_mutant_fits_the_code() -> None:
    """Whether a test notices them is for the slow tier; a promise that moved is noticed here."""
    mutants = script().MUTANTS
    lost = [one.name for one in mutants if (PACKAGE / one.module).read_text().count(one.old) != 1]
    assert lost == []
    folders = Counter(one.folder for one in mutants)
    assert folders.keys() == script().TESTS.keys()
    assert min(folders.values()) >= 8
