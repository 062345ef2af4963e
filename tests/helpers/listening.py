"""A listener of a fetch that keeps what it hears, and what a complete folder looks like."""

from __future__ import annotations

import re
from pathlib import Path

from egalitarian.lab.problems.datasets.files import Dataset, check_file

PART = "cifar-10-binary.tar.gz.part"


class Heard:
    """The notes of a fetch, and the sizes that it reported."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.sizes: list[int] = []

    def progress(self, name: str, size: int, whole: int) -> None:
        assert 0 < size <= whole
        self.sizes.append(size)

    def note(self, text: str) -> None:
        self.said.append(text)

    def __contains__(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.said)


def is_complete(dataset: Dataset, folder: Path) -> bool:
    """All files, and nothing else but the lock."""
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    right = all(check_file(folder, file).state == "present" for file in dataset.files)
    return right and there == {file.path for file in dataset.files} | {".fetching"}
