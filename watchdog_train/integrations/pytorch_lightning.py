"""The callback of integrations.lightning for Lightning's other name, pytorch_lightning."""

from pytorch_lightning import Callback

from watchdog_train.client.hooks import lightning_steps

WatchdogCallback = lightning_steps.make_callback(Callback)
