"""The command line: parsing and printing only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from egalitarian import __version__
from egalitarian.lab.config import catalog
from egalitarian.lab.config.contents import of_table
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.console import data as shelf
from egalitarian.lab.console import options as choices
from egalitarian.lab.console import reports as shows_reports
from egalitarian.lab.console import settings as shows_settings
from egalitarian.lab.console import tables as shows
from egalitarian.lab.console.display import Display, Several, TensorBoard, telling
from egalitarian.lab.console.durations import load_durations
from egalitarian.lab.console.grok import Shown, compare
from egalitarian.lab.console.help import Command, Group
from egalitarian.lab.executors.local import STOPPED, TIME_OVER, Jobs
from egalitarian.lab.problems.datasets.files import DataError, default_folder
from egalitarian.lab.runs.environment import BESIDE
from egalitarian.lab.runs.progress import Interrupted, Silent, percent
from egalitarian.lab.runs.request import Order, Plan
from egalitarian.lab.runs.store import Store, StoreError

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train the experiments of the EGD paper, and your own, over many seeds, and compare methods.",
    epilog="Start with [bold]egalitarian grok[/bold]. Every command has its own --help.",
)

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        envvar="EGALITARIAN_DATA",
        show_default="~/.cache/egalitarian",
        help="Folder of the data sets.",
    ),
]
Runs = Annotated[
    Path, typer.Option("--runs", metavar="FOLDER", envvar="EGALITARIAN_RUNS", help="Folder of the stored runs.")
]
Seeds = Annotated[
    str, typer.Option("--seeds", metavar="N,...", help="Seeds, as 0-7 or 0,2,5; they are trained as one batch.")
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="CPU threads; one is usually best.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as optim.lr=0.5; may be repeated."),
]
Methods = Annotated[
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
EveryMethod = Annotated[
    list[str] | None,
    typer.Option("--methods", "--method", "-m", metavar="NAME,...", help="Methods by name.", show_default="all"),
]
JobsAtOnce = Annotated[
    int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Methods to train at the same time, a process each.")
]
Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name from `egalitarian list`, or a TOML file.")]
Some = Annotated[list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names or TOML files.", show_default="all")]


@app.command(cls=Command)
def grok(
    experiment: Name = "addition-97",
    methods: Methods = None,
    seeds: Seeds = "0",
    device: Device = "auto",
    threads: Threads = 1,
    full: Annotated[bool, typer.Option("--full", help="Train slow methods to the end, too.")] = False,
    changes: Changes = None,
    runs: Runs = Path("runs"),
    data: DataFolder = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Picture to write.", show_default="grok-EXPERIMENT.png"),
    ] = None,
) -> None:
    """Watch networks grok: EGD and SGD live, then a table and a picture.

    The table has epochs and seconds until test accuracy passes the threshold. Without --full, slow methods stop early, and
    the output says which.

    Everything is stored: Ctrl-C loses nothing, and the same command resumes.

    On a CPU, addition-97 takes about a minute, with --full about seven.
    """
    choices.use_data(data)
    from egalitarian.lab.console.picture import draw_grok

    console = Console(highlight=False)
    names = choices.several(methods)
    chosen = catalog.load(experiment, changes or (), names)
    names = names and shows.chosen_methods(chosen, names)
    store, place, numbers = Store(runs), choices.device(device, threads), choices.seeds(seeds)
    target = picture or Path(f"grok-{chosen.name}{'-changed' if changes else ''}.png")
    shows.check_picture(target)
    until = (
        f"until test accuracy passes {percent(chosen.measure.threshold)}" if chosen.measure.waits else "for a fixed budget"
    )
    console.print(f"[bold]{escape(chosen.heading)}[/bold]: training {until}")
    shown: list[Shown] = []
    try:
        with Display(console) as display:
            for each in compare(chosen, names, numbers, store, place, display, full):
                shown.append(each)
    finally:  # after Ctrl-C, too: what is known so far
        shown = [each for each in shown if any(run.last for run in each.runs)]
        if shown:
            for line in shows.said_of(chosen, shown, store):
                shows.put(console, line)
            draw_grok(store, chosen, shown, target)
            console.print(f"Picture: [bold]{escape(str(target))}[/bold]", soft_wrap=True)
            console.print(f"Stored runs: {escape(str(store.root / chosen.name))}", soft_wrap=True)


@app.command("list", cls=Command)
def list_experiments(runs: Runs = Path("runs")) -> None:
    """List the experiments, how long each takes, and its stored runs."""
    console = Console(highlight=False)
    paper, beyond = ([catalog.load(name) for name in names] for names in (catalog.names(), catalog.beyond()))
    for part in shows.experiments(paper, beyond, load_durations(), Store(runs)):
        shows.put(console, part)


@app.command(cls=Command)
def show(
    experiment: Name,
    methods: Methods = None,
    changes: Changes = None,
    sources: Annotated[bool, typer.Option("--sources", help="List each setting with its source.")] = False,
) -> None:
    """Show an experiment's settings and the paper's numbers, by method.

    --sources lists where each comes from: the paper, the authors' code, or us.
    """
    console, names = Console(highlight=False), choices.several(methods)
    chosen = catalog.load(experiment, changes or (), names)
    listed = shows.chosen_methods(chosen, names)
    for part in (
        shows_settings.sources(chosen, listed) if sources else shows_settings.overview(chosen, listed, console.width)
    ):
        shows.put(console, part)


@app.command(cls=Command)
def run(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names from `egalitarian list`, or TOML files.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every experiment of the paper.")] = False,
    beyond: Annotated[bool, typer.Option("--beyond", help="Every experiment beyond the paper.")] = False,
    tables: Annotated[
        list[str] | None, typer.Option("--table", metavar="N,...", help="Experiments of the paper's Table N.")
    ] = None,
    method: Methods = None,
    seeds: Seeds = "0-7",
    changes: Changes = None,
    device: Device = "auto",
    threads: Threads = 1,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            metavar="N",
            min=1,
            help="Stop after N epochs without passing.",
            show_default="the method's",
        ),
    ] = None,
    past: Annotated[
        int | None,
        typer.Option("--past", metavar="N", min=0, help="Epochs to train after passing.", show_default="the experiment's"),
    ] = None,
    final: Annotated[
        bool,
        typer.Option(
            "--final",
            help="Train the first seed to the end of its budget, too; with --all or --table, only where the paper did.",
        ),
    ] = False,
    jobs: JobsAtOnce = 1,
    runs: Runs = Path("runs"),
    data: DataFolder = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="FOLDER", help="Write TensorBoard event files, too.")
    ] = None,
) -> None:
    """Train methods and store the runs; resume unfinished ones.

    A seed passes when its test accuracy exceeds the threshold. A larger --epochs extends stored runs that have not passed,
    a larger --past those that have.

    A seed's result does not depend on the device or on the other seeds, up to rounding. One exception: in float32 on a
    GPU, the lab uses the fast polar factor (docs/lab.md).
    """
    choices.use_data(data)
    console = Console(highlight=False)
    names = choices.several(method)
    groups = [
        *(experiments or ()),
        *(name for number in choices.several(tables) for name in of_table(number)),
        *(catalog.names() if everything else ()),
        *(catalog.beyond() if beyond else ()),
    ]
    loaded = catalog.load_each(choices.at_least_one(groups), changes or (), names)
    plans = [
        Plan(typed, each, name, final and (typed in (experiments or ()) or each.has_final))
        for typed, each in loaded.items()
        for name in shows.chosen_methods(each, names)
    ]
    if tensorboard and jobs > 1:
        raise SpecError(f"--tensorboard must come without --jobs, got {jobs}; leave one of them out")
    order = Order(plans, choices.seeds(seeds), choices.device(device, threads), threads, runs, epochs, past)
    if changes and BESIDE not in os.environ:
        notice = f"Changed: {', '.join(changes)}. These runs are stored separately and do not count as the paper's."
        for line in (
            notice,
            *(own for plan in plans for own in shows_settings.kept_apart(plan.experiment, plan.method, changes)),
        ):
            console.print(f"[dim]{escape(line)}[/dim]")
    left = order
    if BESIDE not in os.environ:  # else whoever began this process has looked
        left = order.left(patient=jobs > 1)
        left.rehearse()
    if jobs > 1:
        side_by_side(Jobs(console, left.commands(), jobs))
        if missing := [plan.name for plan in order.left().plans]:
            raise SpecError(f"every run must be stored by now, got none for {', '.join(missing)}; did a file change?")
        done = order.carry_out(Silent())  # reads what is stored
    else:
        with Display(console, curves=False) as display:
            done = order.carry_out(Several([display, *([TensorBoard(tensorboard)] if tensorboard else [])]))
    if BESIDE in os.environ:
        return  # whoever began this process shows it all
    shows.put(console, shows.trained(done))
    console.print(
        f"Stored in {escape(str(runs))}. `egalitarian report` makes tables and figures of all stored runs.", soft_wrap=True
    )


@app.command(cls=Command)
def report(
    experiments: Some = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to write to.")] = Path("report"),
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite a report of more runs, or a README.md that is not a report's.")
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Write tables, figures and a web page from stored runs. Never trains.

    Tables are in Markdown, CSV and LaTeX, figures in PNG and SVG. Files of an earlier report that this one lacks are
    removed; your own files stay.

    Exits with 1 when a run cannot be read or a figure cannot be drawn. The rest is written nevertheless.
    """
    from egalitarian.lab.report.write import write_report

    written = write_report(
        Store(choices.existing(runs)), choices.named("--out", out), tuple(experiments or ()), replace=replace
    )
    shows_reports.say_report(Console(highlight=False), written)
    if not written.complete:
        raise typer.Exit(1)


@app.command(cls=Command)
def check(
    experiments: Some = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 also for cells that are not run, undecided or not on record.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write the verdicts of these runs to a TOML file.")
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Compare the paper's numbers with the stored runs, cell by cell.

    A line for each cell of the paper's tables: its number, our median and spread over seeds, and a verdict. "Inside" means
    that the paper's number is within our spread. docs/lab.md explains the other verdicts.

    Exits with 1 when the runs contradict a verdict on record (lab/paper/_verdicts.toml), or when a run cannot be read.
    """
    from egalitarian.lab.analysis.recorded import load_record
    from egalitarian.lab.analysis.verdicts import check as judge
    from egalitarian.lab.analysis.verdicts import to_record

    console = Console(highlight=False)
    checked = judge(Store(choices.existing(runs)), tuple(experiments or ()))
    shows_reports.say_verdicts(console, checked)
    if record is not None:
        choices.own_file(record, "[[verdicts]]").write_text(to_record(checked.verdicts, load_record()), encoding="utf-8")
        console.print(f"Written: [bold]{escape(str(record))}[/bold]", soft_wrap=True)
        console.print("Add a reason there for every cell that is not inside.")
    if not checked.ends_well(strict=strict):
        raise typer.Exit(1)


@app.command(cls=Command)
def toy(
    eps: Annotated[
        str,
        typer.Option(
            "--eps",
            metavar="X,...",
            help="Sizes of the weak feature in the curves.",
            show_default="0.01,0.001",
        ),
    ] = "",
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the figures.")] = Path("toy"),
    quick: Annotated[bool, typer.Option("--quick", help="Small samples: seconds instead of a minute.")] = False,
) -> None:
    """Simulate the toy problem of the paper's Section 3; test its theory.

    Every claim is checked as printed and as corrected; docs/errata.md explains the corrections.
    """
    from egalitarian.lab.report.toy import toy_report

    console = Console(highlight=False)
    with console.status("Simulating"):
        done = toy_report(choices.numbers("--eps", eps), out, quick)
    shows_reports.say_toy(console, done, quick)


@app.command(cls=Command)
def bench(
    themes: Annotated[
        list[str] | None,
        typer.Argument(metavar="THEME", help="kernels, step, experiment, clock.", show_default="all but clock"),
    ] = None,
    device: Device = "auto",
    threads: Threads = 1,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds",
            metavar="N,...",
            help="Numbers of seeds to train together. Default: 1,8; for clock 8; for step on a GPU 1,8,64.",
        ),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that it works: seconds.")] = False,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for tables and pictures.")] = Path("bench"),
) -> None:
    """Measure what EGD costs: kernels, a training step, an experiment.

    kernels: every method for the polar factor, with its error.

    step: a training step with and without EGD, for the paper's networks and a GPT's matrices; Muon and other packages are
    measured where they are installed.

    experiment: addition-97 trained to 95%.

    clock: six of the paper's tasks, trained with its SGD and with EGD, which takes hours on a CPU.

    The first three take minutes on a GPU and a quarter of an hour on a CPU. Ctrl-C keeps what has been measured.
    """
    from egalitarian.lab.bench.measured import chosen, measure_theme
    from egalitarian.lab.bench.theme import Setup

    console = Console(highlight=False)
    listed, counts, place = chosen(themes or ()), choices.counts("--seeds", seeds), choices.device(device, threads)
    if out.exists() and not out.is_dir():
        raise SpecError(f"--out must be a folder, got the file {out}; name another")
    out.mkdir(parents=True, exist_ok=True)
    for theme in listed:
        with telling(console, theme.name) as tell:
            measured = measure_theme(theme, Setup(place, quick, counts, tell))
        shows.say_bench(console, measured, measured.write(out))
        if not measured.complete:
            console.print("Stopped. What was measured is written.")
            raise typer.Exit(130)


@app.command(cls=Command)
def tune(
    family: Annotated[
        str, typer.Argument(metavar="FAMILY", help="addition, multiplication, parity, mnist, transformer, cifar, or all.")
    ],
    methods: EveryMethod = None,
    device: Device = "auto",
    threads: Threads = 1,
    size: Annotated[
        int | None,
        typer.Option("--size", metavar="N", help="Side of the grid: 3 has 9 points, 5 has 25.", show_default="the plan's"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", metavar="N", min=0, help="Start nothing new after N minutes; results so far are written."
        ),
    ] = None,
    changes: Changes = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="TOML file with your own families.", show_default="the lab's"),
    ] = None,
    jobs: JobsAtOnce = 1,
    runs: Runs = Path("runs"),
    data: DataFolder = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the results.")] = Path("tuned"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny search, to see that it works; its numbers mean nothing.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite a file that has more points or other rules.")
    ] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only estimate the time on a GPU.")] = False,
) -> None:
    """Tune lr and decay of each method alike, then compare on fresh seeds.

    Every method gets a grid of the same size, which moves while its best point is on the edge. Points are compared on a
    validation split. Rules: docs/tuning.md.

    Ctrl-C loses nothing, and the same command resumes. Exits with 1 when --minutes ran out.
    """
    choices.use_data(data)
    from egalitarian.lab.console.tuning import say_estimate
    from egalitarian.lab.tuning.job import Job, begin, carry_out, show
    from egalitarian.lab.tuning.plan import chosen, load_plan, shrunk

    console = Console(highlight=False)
    listed, names = load_plan(plan), tuple(choices.several(methods))
    families = [shrunk(each, size, quick) for each in chosen(listed, family)]
    if estimate:
        say_estimate(console, families, names)
        return
    where = (runs, choices.named("--out", out), choices.device(device, threads))
    job = Job(families, names, tuple(changes or ()), *where, minutes, quick, replace, list(listed))
    if jobs > 1:
        if replace:
            raise SpecError(f"--replace must come without --jobs, got {jobs}; move the old file away, or leave out --jobs")
        in_time = side_by_side(Jobs(console, job.commands(begin(job), threads, size, plan), jobs, minutes))
        show(job, console)
    else:
        in_time = carry_out(job, console)
    if not in_time:
        console.print("The --minutes are over. Everything is stored; run the same command again to resume.")
        raise typer.Exit(TIME_OVER if BESIDE in os.environ else 1)


@app.command(cls=Command)
def data(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="mnist or cifar-10.", show_default="both")
    ] = None,
    get: Annotated[bool, typer.Option("--fetch", help="Download what is missing or corrupt.")] = False,
    folder: DataFolder = None,
) -> None:
    """Check the data sets MNIST and CIFAR-10; download what is missing.

    --fetch downloads from the official sources, resumes a download that was interrupted, and checks every byte. A corrupt
    file is renamed to NAME.corrupt.

    Exits with 1 when a download fails or a file is corrupt.
    """
    console = Console(highlight=False)
    place, sets = (folder or default_folder()).expanduser(), shelf.chosen(names or ())
    looked = shelf.look(sets, place)
    failed = False
    if get:
        try:
            failed = not shelf.fetched(console, sets, place)
        except KeyboardInterrupt:
            print("Stopped. What was downloaded is kept; run the same command again to resume.", file=sys.stderr)
            raise typer.Exit(130) from None
        looked = shelf.look(sets, place)
    shelf.say(console, looked, place)
    if failed or not shelf.all_usable(looked):
        raise typer.Exit(1)


def side_by_side(jobs: Jobs) -> bool:
    """Whether all were done in time; a failure, or a stop, ends the command."""
    ended = jobs.run()
    failed = {name: how for name, how in ended.items() if how not in (0, STOPPED, TIME_OVER)}
    if failed:
        named = ", ".join(f"{name} (exit code {how})" for name, how in failed.items())
        print(f"egalitarian: {len(failed)} of {len(ended)} jobs failed: {named}; see their errors above", file=sys.stderr)
    if STOPPED in ended.values():
        raise Interrupted
    if failed:
        raise typer.Exit(1)
    return TIME_OVER not in ended.values()


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"egalitarian {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; a user's mistake is a message, not a traceback."""
    try:
        app(arguments, standalone_mode=True)
    except SystemExit as ended:
        if _by_ctrl_c(ended):
            return _stopped_at_once()
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except Interrupted:
        if BESIDE not in os.environ:
            print("Stopped. Everything is stored; run the same command again to resume.", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return _stopped_at_once()
    except (StoreError, DataError, ImportError, ValueError, OSError) as error:
        print(f"egalitarian: {error}", file=sys.stderr)
        return 2
    return 0


def _by_ctrl_c(error: BaseException | None) -> bool:
    """Whether that is at the bottom of it: typer makes an exit of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error is not None


def _stopped_at_once() -> int:
    print("Stopped at once. The last checkpoint is stored; run the same command again to resume.", file=sys.stderr)
    return 130
