"""Pictures of a page in a headless Chromium: wide, as on a phone, dark, and as it prints."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE = 390
SHOT_S = 90.0
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--virtual-time-budget=8000",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"


def take(page: Path, folder: Path) -> list[Path]:
    """All pictures of a page; none where there is no browser."""
    if BROWSER is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wtrain-pictures-") as work:
        beside = Path(work)
        made = [
            _shot(page, folder / "desktop.png", 1100, 1250, beside),
            _shot(page, folder / "desktop-dark.png", 1100, 1250, beside, DARK),
            _phone(page, folder / "phone.png", beside),
            _phone(page, folder / "phone-dark.png", beside, DARK),
        ]
        subprocess.run(
            [BROWSER, *ARGUMENTS, f"--user-data-dir={beside / 'profile'}",
             "--no-pdf-header-footer", f"--print-to-pdf={folder / 'print.pdf'}", page.as_uri()],
            capture_output=True, check=True, timeout=SHOT_S,
        )  # fmt: skip
    for picture in made:
        _fewer_colours(picture)
    return [*made, folder / "print.pdf"]


def _shot(page: Path, picture: Path, width: int, height: int, beside: Path, *more: str) -> Path:
    subprocess.run(
        [str(BROWSER), *ARGUMENTS, *more, f"--user-data-dir={beside / 'profile'}",
         f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri()],
        capture_output=True, check=True, timeout=SHOT_S,
    )  # fmt: skip
    return picture


def _phone(page: Path, picture: Path, beside: Path, *more: str) -> Path:
    # A window cannot be made narrower than 500 pixels; a frame in it can.
    frame = beside / "frame.html"
    frame.write_text(
        f'<!doctype html><body style="margin:0"><iframe src="{page.as_uri()}" '
        f'style="border:0;width:{PHONE}px;height:1600px"></iframe>'
    )
    _shot(frame, picture, 500, 1600, beside, "--allow-file-access-from-files", *more)
    _cut(picture, PHONE)
    return picture


def _cut(picture: Path, width: int) -> None:
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image

    with Image.open(picture) as whole:
        part = whole.crop((0, 0, width, whole.height))
    part.save(picture)


def _fewer_colours(picture: Path) -> None:
    """A page has few colours: a palette makes the file three times smaller."""
    if importlib.util.find_spec("PIL") is None:
        return
    from PIL import Image

    with Image.open(picture) as whole:
        small = whole.convert("RGB").quantize(
            64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
    small.save(picture, optimize=True)
