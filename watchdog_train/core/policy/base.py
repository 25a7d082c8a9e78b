"""What every section of the settings is built from."""

from msgspec import Meta

from watchdog_train.core.model import Value


def positive(text: str) -> Meta:
    """A number above 0, described."""
    return Meta(gt=0, description=text)


def non_negative(text: str) -> Meta:
    """A number from 0 on, described."""
    return Meta(ge=0, description=text)


class Section(Value, forbid_unknown_fields=True):
    """A section of the config file; an unknown key is an error."""
