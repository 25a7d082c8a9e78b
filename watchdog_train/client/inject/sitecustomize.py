"""The stub: loads wtrain's client on the first import of a watched library, in a supervised run.

It runs in every Python of the process tree: it must import nothing that Python has not imported
anyway, parse on Python 2.7, never raise and never print. The user's own sitecustomize runs last.
"""

import sys


def _note(where, error):
    try:
        import os

        directory = os.environ.get("WTRAIN_SLOT_DIR")
        if directory:
            text = "%s: %s: %s" % (where, type(error).__name__, error)
            text = "".join(c if 31 < ord(c) < 127 and c not in '"\\' else "?" for c in text)
            path = os.path.join(directory, "%d.note.json" % os.getpid())
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(path, flags, 0o600)
            data = '{"pid":%d,"role":"unknown","notes":["%s"]}' % (os.getpid(), text[:400])
            os.write(descriptor, data.encode("ascii"))
            os.close(descriptor)
    except Exception:
        pass


class _Finder(object):
    """Waits for the first watched import, then gives its place to the client's finder."""

    watched = frozenset(
        (
            "torch",
            "transformers",
            "accelerate",
            "datasets",
            "huggingface_hub",
            "safetensors",
            "tqdm",
            "keras",
            "tensorflow",
            "wandb",
            "watchdog_train",
        )
    )

    def find_spec(self, name, path=None, target=None):
        """None, but for the first watched name."""
        if name not in self.watched:
            return None
        self.watched = frozenset()
        try:
            finder = _load_client(name)
            # In place: an import walks over this list right now, and would skip an entry.
            sys.meta_path[sys.meta_path.index(self)] = finder
        except Exception as error:
            _note("loading the client", error)
            return None
        return finder.find_spec(name, path, target)


def _load_client(name):
    """Import the client from the folder that this file is in, whatever else is installed."""
    import _frozen_importlib
    import _frozen_importlib_external as external

    package = __file__.replace("\\", "/").rsplit("/", 3)[0]
    known = sys.modules.get("watchdog_train")
    if known is None:
        spec = external.spec_from_file_location(
            "watchdog_train", package + "/__init__.py", submodule_search_locations=[package]
        )
        module = _frozen_importlib.module_from_spec(spec)  # type: ignore[arg-type]
        sys.modules["watchdog_train"] = module
        try:
            spec.loader.exec_module(module)  # type: ignore[union-attr]
            from watchdog_train.client import imports
        finally:
            # The import machinery insists on making the module that it was asked for.
            if name == "watchdog_train":
                sys.modules.pop("watchdog_train", None)
    else:
        from watchdog_train.client import imports
    return imports.begin() if name != "watchdog_train" else imports.arm()


def _start():
    import os

    if not os.environ.get("WTRAIN_SLOT_DIR") or not os.environ.get("WTRAIN_RUN_ID"):
        return
    if sys.version_info < (3, 8):
        return
    finder = _Finder()
    if "celery-solo" in os.environ.get("WTRAIN_SETTINGS", ""):
        finder.watched |= {"celery"}  # its worker may import torch in a task only
    sys.meta_path.insert(0, finder)
    # What a terminal gives; PYTHONUNBUFFERED would tear lines that ranks share.
    if sys.stdout is not None and not sys.stdout.isatty():
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _chain():
    """Run the sitecustomize that would have run without us; its errors are its own."""
    own = __file__.replace("\\", "/").rsplit("/", 1)[0]
    rest = [entry for entry in sys.path if entry.replace("\\", "/").rstrip("/") != own]
    if sys.version_info < (3, 5):
        import imp

        try:
            found = imp.find_module("sitecustomize", rest)
        except ImportError:
            return
        sys.modules.pop("sitecustomize", None)
        imp.load_module("sitecustomize", *found)
        return
    import _frozen_importlib
    import _frozen_importlib_external as external

    spec = external.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _start()
except Exception as _error:
    _note("start", _error)
_chain()
