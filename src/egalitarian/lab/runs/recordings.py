"""Recordings: runs whose settings changed while they trained. They are kept to be looked at; reports refuse them.

    runs/recordings/<experiment>-<method>-seed-<n>-<time>.recording.jsonl

The first line says what was trained. Then come the records of epochs and, where settings changed, a line with `change`.
No method has the settings of a recording, so it is no run: it has no id, no checkpoint and no checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from egalitarian.lab.config import Record
from egalitarian.lab.runs.files import StoreError, as_line, readable, whole_lines, writable

FOLDER = "recordings"
"""Of a folder of runs."""
ENDING = ".recording.jsonl"
FORMAT = "egalitarian recording 1"
WAY_OUT = "free some space or fix the permissions; the run up to its first change is stored"


@dataclass(frozen=True)
class RunRecording:
    """A recording's file: lines are appended to it."""

    path: Path

    @staticmethod
    def begin(runs: Path, about: Mapping[str, Any], records: Iterable[Record]) -> RunRecording:
        """A new file for an `experiment`, a `method` and a `seed`, with the records before the first change."""
        stem = f"{about['experiment']}-{about['method']}-seed-{about['seed']}-{datetime.now():%Y%m%d-%H%M%S}"
        number, folder = 1, runs / FOLDER
        with writable(folder, WAY_OUT):
            folder.mkdir(parents=True, exist_ok=True)
            while (path := folder / f"{stem}{'' if number == 1 else f'-{number}'}{ENDING}").exists():
                number += 1
            path.touch(exist_ok=False)
        recording = RunRecording(path)
        recording.append([{"format": FORMAT, **about}, *records])
        return recording

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Records of epochs, or `{"epoch": ..., "change": {...}}`: settings by dotted key, from that epoch on."""
        with writable(self.path, WAY_OUT), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(as_line(line) for line in lines))

    def read(self) -> list[Record]:
        """All lines: what was trained, then records and changes. A last line that was cut off is left out."""
        with readable(self.path):
            lines = [json.loads(line) for line in whole_lines(self.path).splitlines()]
            if not lines or not isinstance(lines[0], dict) or lines[0].get("format") != FORMAT:
                raise ValueError(f"its first line is not that of {FORMAT!r}")
            return lines


def recordings_in(folder: Path) -> list[Path]:
    """The recordings of a folder of runs, by name."""
    return sorted((folder / FOLDER).glob(f"*{ENDING}"))


def refuse_recordings(folder: Path) -> None:
    """StoreError if this is a folder of recordings: no report may count them."""
    if found := sorted(folder.glob(f"*{ENDING}")):
        raise StoreError(
            f"{folder} must hold stored runs or evidence, got recordings, such as {found[0].name}: their settings changed "
            f"while they trained, so no table may count them; train such settings from the start with `egalitarian run "
            f"--set`"
        )
