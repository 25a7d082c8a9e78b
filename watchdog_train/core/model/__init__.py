"""The nouns of the core: frozen values that every room exchanges, without behaviour."""

from watchdog_train.core.model.exceptions import *
from watchdog_train.core.model.explanation import *
from watchdog_train.core.model.processes import *
from watchdog_train.core.model.progress import *
from watchdog_train.core.model.reasons import *
from watchdog_train.core.model.recovery import *
from watchdog_train.core.model.words import *
