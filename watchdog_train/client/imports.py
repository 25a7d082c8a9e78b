"""When a watched module has been imported, its hook runs; each hook fails alone, with a note.

It must not change what an import gives: only `exec_module` of that one loader instance is
wrapped, for that one call, so type, spec, source and resources of the loader stay.
"""

import os
import sys

from watchdog_train.client import exceptions, libraries, milestones, notes, pulse, slot  # noqa: F401 - wait
from watchdog_train.client import layout as L  # noqa: N812
from watchdog_train.client.libraries import HOOKS

PACKAGE = "watchdog_train"
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_pending: set = set()
_finding: set = set()


class _Finder:
    def find_spec(self, name, path=None, target=None):
        """The spec of the other finders, with its loader prepared."""
        if name == PACKAGE:
            return own_spec()
        if name not in _pending or name in _finding:
            return None
        _finding.add(name)
        try:
            spec = _ask_others(self, name, path, target)
        finally:
            _finding.discard(name)
        if spec is not None:
            _prepare(name, spec)
        return spec


FINDER = _Finder()


def arm():
    """Run the hooks of modules that are here already, and wait for the others."""
    for name in HOOKS:
        module = sys.modules.get(name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            _pending.add(name)
        else:
            run_hook(name, module)
    return FINDER


def own_spec():
    """The spec of this very package: the supervisor's copy, whatever else is installed."""
    import _frozen_importlib_external as external

    return external.spec_from_file_location(
        PACKAGE, os.path.join(_HERE, "__init__.py"), submodule_search_locations=[_HERE]
    )


def run_hook(name, module):
    _pending.discard(name)
    hook, library = HOOKS[name][:2]
    try:
        covered, status = libraries.coverage(name, libraries.version_of(library))
        if covered:
            file, _, function = hook.partition(":")
            full = "watchdog_train.client.hooks." + file
            __import__(full)
            getattr(sys.modules[full], function or "arm")(module)
        _note(name, status)
    except Exception as error:
        _note(name, "failed: " + type(error).__name__ + ": " + str(error)[:200])


def _note(name, status):
    notes.hook(HOOKS[name][0].rpartition(":")[2], status)


def _ask_others(own, name, path, target):
    # What another finder raises it would raise without us, too.
    for finder in list(sys.meta_path):
        find = None if finder is own else getattr(finder, "find_spec", None)
        spec = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None


def _prepare(name, spec):
    try:
        loader = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None or isinstance(loader, type):
            _note(name, "failed: its loader cannot be wrapped")
            return

        def exec_module(module):
            try:
                del loader.exec_module
            except Exception:
                pass
            place = None if name in libraries.QUICK else milestones.begin("import " + name)
            failed = True
            try:
                original(module)
                failed = False
            finally:
                if not failed and name in _pending:
                    run_hook(name, module)
                milestones.end(place, failed)

        loader.exec_module = exec_module
    except Exception as error:
        _note(name, "failed: " + type(error).__name__)


def begin():
    """The first watched import has begun: make the slot, arm the hooks; returns the finder."""
    slot.open_slot()
    # A launcher has no turn of its own.
    if '"stagger-start"' in slot.settings_json and slot.words[L.W_ROLE] == L.ROLE_RANK:
        from watchdog_train.client import settings, training_settings

        settings.attempted("stagger-start", training_settings.stagger)
    return arm()
