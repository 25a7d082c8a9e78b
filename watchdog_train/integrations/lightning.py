"""A callback for lightning.pytorch to add by hand; it does nothing outside a supervised run.

Under `wtrain run` a hook does all that it does, and resumes as well: having both changes nothing.
It is for a Lightning whose version is outside the range that the hook was tested on.
"""

from lightning.pytorch import Callback

from watchdog_train.client.hooks import lightning_steps

WatchdogCallback = lightning_steps.make_callback(Callback)
