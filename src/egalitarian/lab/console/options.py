"""What users type: options and arguments of the commands, the layout of the help, and parsing into values."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from egalitarian.lab.config import Experiment, SpecError, load_each
from egalitarian.lab.runs import Evidence, Source, StoreError, open_source, writable, write_atomically

STORE = Path("runs")
EVIDENCE = Path("results/evidence")
"""What `pack` writes, and what reports read where there are no stored runs."""
MOST_SEEDS = 10_000
MOST_THREADS = 1024


def few_threads(threads: int) -> int:
    """Torch takes no number beyond 32 bits. A range of typer's would widen the help beyond 80 columns."""
    if threads > MOST_THREADS:
        raise SpecError(f"--threads must be at most {MOST_THREADS}, got {threads}; one is usually best")
    return threads


def runs_folder(value: str | Path) -> Path:
    """A folder of stored runs, which need not exist. Not a SpecError: typer would replace the text of a ValueError."""
    text, path = str(value), Path(value)
    if not text:
        raise StoreError("--runs must be a folder, got an empty name; leave it out for runs")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise StoreError(f"--runs must have a name in UTF-8, got {text!r}; rename the folder, or name another") from None
    if path.is_symlink() and not path.exists():
        raise StoreError(
            f"--runs must be a folder, got {path}, a link to {path.readlink()}, which is not there; mend the link"
        )
    if path.exists() and not path.is_dir():
        raise StoreError(f"--runs must be a folder, got the file {path}; name another")
    return path


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        envvar="EGALITARIAN_DATA",
        show_default="~/.cache/egalitarian",
        help="Folder of the data sets.",
    ),
]
RunsOption = Annotated[
    Path,
    typer.Option(
        "--runs",
        metavar="FOLDER",
        envvar="EGALITARIAN_RUNS",
        parser=runs_folder,
        help="Folder of the stored runs.",
    ),
]
SourceOption = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        metavar="FOLDER",
        envvar="EGALITARIAN_RUNS",
        parser=runs_folder,
        help="Folder of stored runs, or of evidence.",
        show_default="runs; without it, results/evidence",
    ),
]
HaveOption = Annotated[
    Path | None,
    typer.Option("--have", metavar="FOLDER", help="Folder of evidence: runs complete in it are not trained."),
]
SeedsOption = Annotated[
    str, typer.Option("--seeds", metavar="N,...", help="Seeds, as 0-7 or 0,2,5; they are trained as one batch.")
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
ThreadsOption = Annotated[
    int,
    typer.Option("--threads", metavar="N", min=1, callback=few_threads, help="CPU threads; one is usually best."),
]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as optim.lr=0.5; may be repeated."),
]
MethodsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--methods",
        "--method",
        "-m",
        metavar="NAME,...",
        help="Methods by name, or all.",
        show_default="the usual ones",
    ),
]
AllMethodsOption = Annotated[
    list[str] | None,
    typer.Option("--methods", "--method", "-m", metavar="NAME,...", help="Methods by name.", show_default="all"),
]
"""As `MethodsOption`, for a command that takes all methods by default."""
JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Methods to train at the same time, a process each.")
]
OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="CLUSTER", help="ray, ray:HOST:PORT or slurm.", show_default="this machine"),
]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="For Slurm, as partition=gpu or time=600; may be repeated."),
]
EpochsOption = Annotated[
    int | None,
    typer.Option("--epochs", metavar="N", min=1, help="Stop after N epochs without passing.", show_default="the method's"),
]
PastOption = Annotated[
    int | None,
    typer.Option("--past", metavar="N", min=0, help="Epochs to train after passing.", show_default="the experiment's"),
]
FinalOption = Annotated[
    bool,
    typer.Option(
        "--final",
        help="Train the first seed to the end of its budget, too; with --all or --table, only where the paper did.",
    ),
]
TablesOption = Annotated[
    list[str] | None, typer.Option("--table", metavar="N,...", help="Experiments of the paper's Table N.")
]
TensorBoardOption = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="FOLDER", help="Write TensorBoard event files, too.")
]
ExperimentArgument = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A name from `egalitarian list`, or a TOML file.")
]
ExperimentsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names or TOML files.", show_default="all")
]
ListedExperimentsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names from `egalitarian list`, or TOML files.")
]


class Command(TyperCommand):
    """A command whose help wraps at the terminal's width, and shows no types of flags and arguments."""

    def __init__(self, *arguments: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*arguments, help=_unwrap(help), **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_types(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """All commands, with the same layout of the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_types(super().get_params(ctx))


def _unwrap(text: str | None) -> str | None:
    """Every paragraph as one line: a docstring breaks its lines elsewhere than a terminal."""
    return text and "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _hide_types(parameters: list[Any]) -> list[Any]:
    """Removes `<bool>` after a flag and `<list[str]>` after an argument, whose name and help suffice."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _nothing
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _nothing(*_: Any, **__: Any) -> None:
    return None


def parse_seeds(text: str) -> list[int]:
    """`0-7`, `3`, `0,2,5`, `0-3,8`: each once, in the order given."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        if match is None:
            raise SpecError(f"--seeds must be numbers and ranges, got {text!r}; for example 0-7 or 0,2,5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_SEEDS:
            raise SpecError(
                f"--seeds must be ranges from low to high, of at most {MOST_SEEDS} seeds, got {part!r}; for example 0-7"
            )
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def choose_methods(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """The named methods, or those trained by default if none is named; `all` is every method."""
    for name in names:
        if name != "all":
            experiment.method(name)
    if "all" in names:
        return list(experiment.methods)
    return list(names) or experiment.usual


def existing_source(runs: Path | None, experiments: Sequence[str] | None = None) -> Source:
    """The stored runs or the evidence of a folder, for commands that only read; by default the first that is there.

    A name that is no experiment is the first error: it would be one with any runs.
    """
    load_each(experiments or ())
    found = runs
    if runs is None:
        found = STORE if STORE.is_dir() else EVIDENCE if Evidence(EVIDENCE).experiments() else None
    if found is None:
        raise SpecError(
            f"no stored runs in {STORE} and no evidence in {EVIDENCE}; train with `egalitarian run`, or name a folder with "
            "--runs"
        )
    if not found.is_dir():
        raise SpecError(f"--runs must be a folder of stored runs or of evidence, got {found}; `egalitarian run` makes one")
    return open_source(found)


def print_source(console: Console, source: Source) -> None:
    """Prints what a command has read."""
    what = "evidence" if isinstance(source, Evidence) else "stored runs"
    console.print(f"Read: the {what} in {escape(str(source.root))}.", soft_wrap=True)


def existing_evidence(have: Path | None) -> Path | None:
    """A folder of evidence, which must hold some."""
    if have is not None and not isinstance(open_source(have), Evidence):
        raise SpecError(f"--have must be a folder of evidence, got {have}; `egalitarian pack` makes one")
    return have


def own_folder(option: str, folder: Path) -> Path:
    """A folder other than the current one, since a report writes a README.md."""
    if os.path.realpath(folder) == os.path.realpath(Path.cwd()):  # unlike `resolve`, it takes a link to itself
        raise SpecError(f"{option} must be a folder of its own, got the current one; for example report")
    return folder


def own_file(path: Path, content: str) -> Path:
    """A file that may be written: a new one, or an earlier one of ours, recognised by `content`, a text in all of them."""
    if path.exists() and not (path.is_file() and content in path.read_text(encoding="utf-8", errors="replace")):
        what = "a folder" if path.is_dir() else "a file of another kind"
        raise SpecError(f"{path} must be new or have {content} in it, got {what}; name another")
    return path


def write_own_file(path: Path, content: str, text: str) -> None:
    """Writes `text` to an `own_file`. A full disk or a missing permission is an error, and leaves the file as it was."""
    with writable(path, "free some space, or name another file"):
        write_atomically(own_file(path, content), text)


def picture_file(path: Path) -> Path:
    """A path that a picture can be written to, checked before the training and not after it."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise SpecError(f"--picture must end in .png, .svg or .pdf, got {path}; for example grok.png")
    if path.is_dir():
        raise SpecError(f"--picture must be a file, got the folder {path}; name a file in it")
    if not path.parent.is_dir():
        raise SpecError(f"--picture must be in a folder that exists, got {path}; make {path.parent} first")
    return path


def distinct_experiments(names: list[str]) -> list[str]:
    """The names of experiments, each once; an error if there is none."""
    if not names:
        raise SpecError("EXPERIMENT must be given, got none; name some from `egalitarian list`, or use --all")
    return list(dict.fromkeys(names))


def split_words(text: str | None) -> list[str]:
    """A comma-separated list, each word once; None and an empty text are the empty list."""
    return list(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))


def split_each(values: Sequence[str] | None) -> list[str]:
    """The words of an option that may be given more than once, each time with several."""
    return list(dict.fromkeys(word for value in values or () for word in split_words(value)))


def split_methods(values: Sequence[str] | None) -> list[str]:
    """The names after --methods; none only if the option is absent: `-m "$METHODS"` must not train all by mistake."""
    names = split_each(values)
    if values and not names:
        raise SpecError(f"--methods must name at least one, got {','.join(values)!r}; leave it out for the usual ones")
    return names


def parse_numbers(option: str, text: str) -> list[float] | None:
    """A comma-separated list of numbers; None if it is empty."""
    try:
        return [float(word) for word in split_words(text)] or None
    except ValueError:
        raise SpecError(f"{option} must be numbers, got {text!r}; for example 0.1,0.01") from None


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """A comma-separated list of integers from 1."""
    found = split_words(text)
    if not all(re.fullmatch(r"[1-9]\d{0,3}", word) for word in found):
        raise SpecError(f"{option} must be whole numbers from 1 to 9999, got {text!r}; for example 1,8")
    return tuple(int(word) for word in found)


def parse_day(option: str, text: str) -> str:
    """A day as 2026-11-18; an empty text stays one."""
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError:
        raise SpecError(f"{option} must be a day as 2026-11-18, got {text!r}; leave it out for today") from None
