"""`egalitarian data`: the state of every file of the data sets, and a progress bar for every download."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from egalitarian.lab.config import SpecError, nearest
from egalitarian.lab.console.options import DataOption
from egalitarian.lab.console.tables import put, table
from egalitarian.lab.problems import (
    DATASETS,
    DataError,
    Dataset,
    FileCheck,
    FileState,
    check_file,
    default_folder,
    fetch,
)

STYLES: Mapping[FileState, str] = {"present": "green", "missing": "yellow", "corrupt": "red", "unreadable": "red"}
Checks = Mapping[str, Sequence[FileCheck]]
"""By data set, in the order of its files."""


def data(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="mnist or cifar-10.", show_default="both")
    ] = None,
    get: Annotated[bool, typer.Option("--fetch", help="Download what is missing or corrupt.")] = False,
    folder: DataOption = None,
) -> None:
    """Check the data sets MNIST and CIFAR-10; download what is missing.

    --fetch downloads from the official sources, resumes a download that was interrupted, and checks every byte. A corrupt
    file is renamed to NAME.corrupt.

    Exits with 1 when a download fails or a file is corrupt.
    """
    console = Console(highlight=False)
    root, datasets = (folder or default_folder()).expanduser(), choose_datasets(names or ())
    checks = check_files(datasets, root)
    failed = False
    if get:
        try:
            failed = not fetch_all(console, datasets, root)
        except KeyboardInterrupt:
            print("Stopped. What was downloaded is kept; run the same command again to resume.", file=sys.stderr)
            raise typer.Exit(130) from None
        checks = check_files(datasets, root)
    print_checks(console, checks, root)
    if failed or not none_corrupt(checks):
        raise typer.Exit(1)


def choose_datasets(names: Sequence[str]) -> list[Dataset]:
    """The named data sets, each once; all of them if none is named."""
    for name in names:
        if name not in DATASETS:
            hint = nearest(name, DATASETS) or "choose one"
            raise SpecError(f"data set must be one of {', '.join(DATASETS)}, got {name!r}; {hint}")
    return [DATASETS[name] for name in dict.fromkeys(names or DATASETS)]


def check_files(datasets: Sequence[Dataset], folder: Path) -> Checks:
    """The state of every file."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"--data must be a folder, got the file {folder}; name the folder it is in, or another")
    return {dataset.name: [check_file(folder, file) for file in dataset.files] for dataset in datasets}


def none_corrupt(checks: Checks) -> bool:
    """Whether every file that exists is valid; a missing file is not corrupt."""
    return all(each.state in ("present", "missing") for several in checks.values() for each in several)


def print_checks(console: Console, checks: Checks, folder: Path) -> None:
    """Prints the table and what to do. Paths and commands are not wrapped, so that they can be copied."""
    for part in _render(checks, folder):
        if isinstance(part, str):
            console.print(part, soft_wrap=True)
        else:
            put(console, part)


def _render(checks: Checks, folder: Path) -> Iterator[RenderableType]:
    """A table of all files, and how to get those that cannot be used."""
    made = table("data set", "file", "state", ">bytes")
    for column in made.columns:
        column.no_wrap = True
    for name, several in checks.items():
        for file, each in zip(DATASETS[name].files, several, strict=True):
            state = f"[{STYLES[each.state]}]{each.state}[/]"
            made.add_row(DATASETS[name].title, escape(file.path), state, f"{file.size:,}".replace(",", " "))
    yield made
    yield f"Folder: [bold]{escape(str(folder))}[/bold] (--data or EGALITARIAN_DATA chooses another)"
    for name, several in checks.items():
        yield from (f"{escape(str(each.path))}: {escape(each.reason)}" for each in several if each.reason)
        if any(each.state != "present" for each in several):
            yield _how_to_get(DATASETS[name], several, folder)


def _how_to_get(dataset: Dataset, checks: Sequence[FileCheck], folder: Path) -> str:
    lacking = sum(each.state != "present" for each in checks)
    command = f"egalitarian data --fetch {dataset.name} --data {shlex.quote(str(folder))}"
    archives = [
        archive
        for archive in dataset.archives
        if any(check_file(folder, file).state != "present" for file in archive.files)
    ]
    lines = [f"{dataset.title}: {lacking} of {len(checks)} files are missing or wrong. To download them:"]
    lines += [f"  [bold]{escape(command)}[/bold]"]
    lines += ["Without a network: get these elsewhere, put them there and run the same command:"]
    lines += [f"  {escape(archive.urls[0])} as {escape(str(folder / archive.path))}" for archive in archives]
    return "\n".join(lines)


def fetch_all(console: Console, datasets: Sequence[Dataset], folder: Path) -> bool:
    """Fetches every data set and returns whether all succeeded. After a failure, which is printed, the others go on."""
    errors: list[DataError] = []
    with DownloadBars(console) as listener:
        for dataset in datasets:
            try:
                fetch(dataset, folder, listener)
            except DataError as error:
                errors.append(error)
    for each in errors:
        print(f"egalitarian: {each}", file=sys.stderr)
    return not errors


class DownloadBars:
    """A listener of a fetch: a bar for each archive if there is a terminal, and a line for each note."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bars = Bars(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def progress(self, name: str, size: int, whole: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=whole)
        self._bars.update(self._tasks[name], completed=size)

    def note(self, text: str) -> None:
        self._console.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()
