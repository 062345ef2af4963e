"""The data sets on the screen: what is there and what is not, and a bar while one is fetched."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from egalitarian.lab.config.schema import SpecError, nearest
from egalitarian.lab.console import tables as shows
from egalitarian.lab.problems.datasets.fetch import fetch
from egalitarian.lab.problems.datasets.files import DataError, Dataset, State, Verdict, inspect
from egalitarian.lab.problems.datasets.official import DATASETS

STYLES: Mapping[State, str] = {"present": "green", "missing": "yellow", "corrupt": "red", "unreadable": "red"}
Looked = Mapping[str, Sequence[Verdict]]


def chosen(names: Sequence[str]) -> list[Dataset]:
    """By name, each once; all if none is named."""
    for name in names:
        if name not in DATASETS:
            hint = nearest(name, DATASETS) or "choose one"
            raise SpecError(f"data set must be one of {', '.join(DATASETS)}, got {name!r}; {hint}")
    return [DATASETS[name] for name in dict.fromkeys(names or DATASETS)]


def look(datasets: Sequence[Dataset], folder: Path) -> Looked:
    """A verdict on every file."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"--data must be a folder, got the file {folder}; name the folder it is in, or another")
    return {dataset.name: [inspect(folder, file) for file in dataset.files] for dataset in datasets}


def all_usable(looked: Looked) -> bool:
    """That nothing which is there is wrong; what is missing is not there."""
    return all(verdict.state in ("present", "missing") for verdicts in looked.values() for verdict in verdicts)


def say(console: Console, looked: Looked, folder: Path) -> None:
    """Paths and commands are never broken: they are there to be copied."""
    for part in _shown(looked, folder):
        if isinstance(part, str):
            console.print(part, soft_wrap=True)
        else:
            shows.put(console, part)


def _shown(looked: Looked, folder: Path) -> Iterator[RenderableType]:
    """A table of all files, and what to do about those that cannot be used."""
    made = shows.table("data set", "file", "state", ">bytes")
    for column in made.columns:
        column.no_wrap = True
    for name, verdicts in looked.items():
        for file, verdict in zip(DATASETS[name].files, verdicts, strict=True):
            state = f"[{STYLES[verdict.state]}]{verdict.state}[/]"
            made.add_row(DATASETS[name].title, escape(file.path), state, f"{file.size:,}".replace(",", " "))
    yield made
    yield f"Folder: [bold]{escape(str(folder))}[/bold] (--data or EGALITARIAN_DATA chooses another)"
    for name, verdicts in looked.items():
        yield from (f"{escape(str(verdict.path))}: {escape(verdict.reason)}" for verdict in verdicts if verdict.reason)
        if any(verdict.state != "present" for verdict in verdicts):
            yield _way_out(DATASETS[name], verdicts, folder)


def _way_out(dataset: Dataset, verdicts: Sequence[Verdict], folder: Path) -> str:
    lacking = sum(verdict.state != "present" for verdict in verdicts)
    command = f"egalitarian data --fetch {dataset.name} --data {shlex.quote(str(folder))}"
    archives = [
        archive for archive in dataset.archives if any(inspect(folder, file).state != "present" for file in archive.files)
    ]
    lines = [f"{dataset.title}: {lacking} of {len(verdicts)} files are missing or wrong. To download them:"]
    lines += [f"  [bold]{escape(command)}[/bold]"]
    lines += ["Without a network: get these elsewhere, put them there and run the same command:"]
    lines += [f"  {escape(archive.urls[0])} as {escape(str(folder / archive.path))}" for archive in archives]
    return "\n".join(lines)


def fetched(console: Console, datasets: Sequence[Dataset], folder: Path) -> bool:
    """Whether all went well; the failure of one data set, which is told, keeps no other from being fetched."""
    errors: list[DataError] = []
    with Fetching(console) as listener:
        for dataset in datasets:
            try:
                fetch(dataset, folder, listener)
            except DataError as error:
                errors.append(error)
    for each in errors:
        print(f"egalitarian: {each}", file=sys.stderr)
    return not errors


class Fetching:
    """Listens to a fetch: a bar for each archive where there is a terminal, and a line for whatever happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bars = Bars(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def has(self, name: str, size: int, whole: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=whole)
        self._bars.update(self._tasks[name], completed=size)

    def says(self, text: str) -> None:
        self._console.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()
