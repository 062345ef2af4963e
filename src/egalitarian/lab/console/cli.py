"""The command line: the commands in the order of the help, and `main`, which runs one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from egalitarian import __version__
from egalitarian.lab import config
from egalitarian.lab.console.data import data
from egalitarian.lab.console.explore import explore
from egalitarian.lab.console.options import (
    Command,
    CommandGroup,
    RunsOption,
)
from egalitarian.lab.console.reports import bench, check, pack, report, toy
from egalitarian.lab.console.settings import show
from egalitarian.lab.console.tables import describe_experiments, load_durations, put
from egalitarian.lab.console.training import grok, run, tune
from egalitarian.lab.problems import DataError
from egalitarian.lab.runs import (
    Interrupted,
    Store,
    StoreError,
    message_of,
)


def list_experiments(runs: RunsOption = Path("runs")) -> None:
    """List the experiments, how long each takes, and its stored runs."""
    console = Console(highlight=False)
    paper, beyond = ([config.load(name) for name in names] for names in (config.names(), config.beyond()))
    for part in describe_experiments(paper, beyond, load_durations(), Store(runs)):
        put(console, part)


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train the experiments of the EGD paper, and your own, over many seeds, and compare methods.",
    epilog="Start with [bold]egalitarian grok[/bold]. Every command has its own --help.",
)
app.command(cls=Command)(grok)
app.command("list", cls=Command)(list_experiments)
for command in (show, run, explore, report, check, pack, toy, bench, tune, data):
    app.command(cls=Command)(command)


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"egalitarian {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns its exit status; a user's mistake is a message, not a traceback."""
    try:
        app(arguments, standalone_mode=True)
    except SystemExit as ended:
        if _by_ctrl_c(ended):
            return _stopped_at_once()
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except Interrupted:
        print("Stopped. Everything is stored; run the same command again to resume.", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return _stopped_at_once()
    except (StoreError, DataError, ImportError, ValueError, OSError) as error:
        print(f"egalitarian: {message_of(error)}", file=sys.stderr)
        return 2
    return 0


def _by_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C is at the root of it: typer turns it into an exit."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error is not None


def _stopped_at_once() -> int:
    print("Stopped at once. The last checkpoint is stored; run the same command again to resume.", file=sys.stderr)
    return 130
