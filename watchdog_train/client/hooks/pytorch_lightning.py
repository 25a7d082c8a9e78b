"""The hook of Lightning under its other name, pytorch_lightning."""

from watchdog_train.client.hooks.lightning import arm

__all__ = ["arm"]
