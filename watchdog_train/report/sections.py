"""A report as data, which every renderer shows alike. Pure."""

from __future__ import annotations

from watchdog_train.core.model import Value


class Fold(Value):
    """Lines under a title of their own."""

    title: str
    lines: tuple[str, ...]


class Section(Value):
    """A title and what stands under it, in this order."""

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()
    """Lines to copy."""
    folds: tuple[Fold, ...] = ()
    """Longer lists, closed until somebody opens them; the text leaves them out."""
    minor: bool = False
    """One of many alike: a page shows its title, and the rest when it is opened."""


class Document(Value):
    """A report."""

    title: str
    verdict: str
    good: bool
    sections: tuple[Section, ...]
