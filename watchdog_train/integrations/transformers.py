"""A Trainer callback to add by hand; it does nothing outside a supervised run.

Under `wtrain run` the same is added by itself; having both changes nothing.
"""

from transformers import TrainerCallback

from watchdog_train.client.hooks import transformers

WatchdogCallback = transformers.make_callback(TrainerCallback)
