"""What `--keep DIR` leaves of a night."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from tests.night.play import Night
from tests.night.stage import wtrain
from tests.night.table import table


def keep(night: Night, folder: Path) -> None:
    """Run directory, text report, page in one file, and messages."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(night.run_dir, folder / "run", dirs_exist_ok=True)
    said = wtrain("report", cwd=night.work, env=night.env).stdout
    (folder / "report.txt").write_text(said, "utf-8")
    wtrain("report", "-o", str(folder / "report.html"), cwd=night.work, env=night.env)
    told = [asdict(message) for message in night.sink.messages]
    (folder / "messages.json").write_text(json.dumps(told, indent=1), "utf-8")
    (folder / "terminal.txt").write_text(night.terminal_said, "utf-8")
    (folder / "adopter.txt").write_text(night.adopter_said, "utf-8")
    (folder / "table.md").write_text(table(night) + "\n", "utf-8")
    print(f"night: kept in {folder}", flush=True)
