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
from egalitarian.lab import catalog, choices, shelf, shows, shows_reports
from egalitarian.lab.datasets.files import DataError, default_folder
from egalitarian.lab.environment import BESIDE
from egalitarian.lab.grok import Shown, compare
from egalitarian.lab.jobs import STOPPED, TIME_OVER, Jobs
from egalitarian.lab.listeners import Display, Several, TensorBoard, telling
from egalitarian.lab.order import Order, Plan
from egalitarian.lab.progress import Interrupted, Silent
from egalitarian.lab.report.contents import of_table
from egalitarian.lab.settings import SpecError
from egalitarian.lab.store import Store, StoreError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Egalitarian gradient descent: the paper's experiments, with seeds, spread and fair baselines.",
    epilog="Start with [bold]egalitarian grok[/bold]. Every command has its own --help.",
)

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", envvar="EGALITARIAN_DATA", help="Folder of the data; default: ~/.cache/egalitarian."),
]
Runs = Annotated[Path, typer.Option("--runs", envvar="EGALITARIAN_RUNS", help="Folder of the stored runs.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds: 0-7, or 0,2,5. All are trained as one.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="CPU threads. These networks are small: more seldom helps.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: optim.lr=0.5, task.modulus=101.")
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--methods", "--method", "-m", metavar="NAME,...", help="Methods, or all; default: the usual ones."),
]
SomeMethods = Annotated[
    list[str] | None, typer.Option("--methods", "--method", "-m", metavar="NAME,...", help="Methods; default: all.")
]
JobsAtOnce = Annotated[
    int, typer.Option("--jobs", "-j", min=1, help="Methods trained at once, each in a process of its own.")
]
Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A name from `egalitarian list`, or a TOML file.")]


@app.command()
def grok(
    experiment: Name = "addition-97",
    methods: Methods = None,
    seeds: Seeds = "0",
    device: Device = "auto",
    threads: Threads = 1,
    full: Annotated[bool, typer.Option("--full", help="Give the slow methods their whole budget, too.")] = False,
    changes: Changes = None,
    runs: Runs = Path("runs"),
    data: DataFolder = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Where to draw; default: grok-EXPERIMENT.png, here.")
    ] = None,
) -> None:
    """Watch networks grok: EGD beside SGD, live, with a table and a picture at the end.

    Plain SGD needs thousands of epochs; without --full it gets three times what EGD needed, which the table says.
    Everything is stored: Ctrl-C is safe, and the same command goes on where it stopped. On addition-97 it takes about a
    minute and a half on a CPU, with --full about seven.
    """
    choices.use_data(data)
    from egalitarian.lab.picture import draw_grok

    console = Console(highlight=False)
    names = choices.several(methods)
    chosen = catalog.load(experiment, changes or (), names)
    names = names and shows.chosen_methods(chosen, names)
    store, place, numbers = Store(runs), choices.device(device, threads), choices.seeds(seeds)
    target = picture or Path(f"grok-{chosen.name}{'-changed' if changes else ''}.png")
    shows.check_picture(target)
    console.print(
        f"[bold]{escape(chosen.heading)}[/bold]: epochs until test accuracy passes {chosen.measure.threshold:.0%}"
    )
    shown: list[Shown] = []
    try:
        with Display(console) as display:
            for each in compare(chosen, names, numbers, store, place, display, full):
                shown.append(each)
    finally:  # after Ctrl-C, too: what there is so far
        shown = [each for each in shown if any(run.last for run in each.runs)]
        if shown:
            for line in shows.said_of(chosen, shown, store):
                shows.put(console, line)
            draw_grok(store, chosen, shown, target)
            records = escape(str(store.root / chosen.name))
            console.print(f"Picture: [bold]{escape(str(target))}[/bold]   Records: {records}", soft_wrap=True)


@app.command("list")
def list_experiments(runs: Runs = Path("runs")) -> None:
    """The experiments there are, and what is stored of each."""
    loaded = [catalog.load(name) for name in (*catalog.names(), *catalog.beyond())]
    for part in shows.experiments(loaded, Store(runs)):
        shows.put(Console(highlight=False), part)


@app.command()
def show(experiment: Name, methods: SomeMethods = None, changes: Changes = None) -> None:
    """Every setting of an experiment with its source, its methods, and what the paper claims."""
    console, names = Console(highlight=False), choices.several(methods)
    chosen = catalog.load(experiment, changes or (), names)
    for part in shows.settings(chosen, shows.chosen_methods(chosen, names or ["all"])):
        shows.put(console, part)


@app.command()
def run(
    experiments: Annotated[list[str] | None, typer.Argument(metavar="EXPERIMENT...", help="Names or TOML files.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every experiment of the paper.")] = False,
    beyond: Annotated[bool, typer.Option("--beyond", help="Every experiment beyond it.")] = False,
    tables: Annotated[
        list[str] | None, typer.Option("--table", metavar="N,...", help="The experiments of the paper's Table N.")
    ] = None,
    method: Methods = None,
    seeds: Seeds = "0-7",
    changes: Changes = None,
    device: Device = "auto",
    threads: Threads = 1,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Budget of a seed that does not pass, instead of the method's.")
    ] = None,
    past: Annotated[
        int | None, typer.Option("--past", min=0, help="Epochs to go on after the threshold is passed.")
    ] = None,
    final: Annotated[
        bool,
        typer.Option(
            "--final", help="Then take the first seed through its budget; of --all and --table where the paper does."
        ),
    ] = False,
    jobs: JobsAtOnce = 1,
    runs: Runs = Path("runs"),
    data: DataFolder = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Write TensorBoard event files here, too.")
    ] = None,
) -> None:
    """Train and store: goes on with what is half done, skips what is stored.

    A longer --epochs extends a stored run that has not passed, a longer --past one that has. The seeds that
    are trained together make no difference to a run but rounding; nor does the device, but that on a GPU in float32 the
    polar factor is the fast one (docs/lab.md).
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
        told = f"With {', '.join(changes)}: what that changes is stored beside, and never counted as the paper's."
        for line in (told, *(own for plan in plans for own in shows.kept_apart(plan.experiment, plan.method, changes))):
            console.print(f"[dim]{escape(line)}[/dim]")
    left = order
    if BESIDE not in os.environ:  # else whoever began this process has looked
        left = order.left(patient=jobs > 1)
        left.rehearse()
    if jobs > 1:
        side_by_side(Jobs(console, left.commands(), jobs))
        if missing := [plan.name for plan in order.left().plans]:
            raise SpecError(f"every run must be stored by now, got {', '.join(missing)} that is not; did a file change?")
        done = order.carry_out(Silent())  # reads what is stored
    else:
        with Display(console, curves=False) as display:
            done = order.carry_out(Several([display, *([TensorBoard(tensorboard)] if tensorboard else [])]))
    if BESIDE in os.environ:
        return  # whoever began this process shows it all
    shows.put(console, shows.trained(done))
    console.print(f"Stored in {runs}; `egalitarian report` makes tables and figures of it.", soft_wrap=True)


@app.command()
def report(
    experiments: Annotated[list[str] | None, typer.Argument(metavar="[EXPERIMENT]...", help="Default: all.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("report"),
    replace: Annotated[
        bool, typer.Option("--replace", help="Even over a report of more runs, or a README.md of yours.")
    ] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Tables (Markdown, CSV, LaTeX), figures (PNG, SVG) and a page, from stored runs. Never trains.

    What an earlier report wrote into the folder and this one does not is removed; files that no report wrote stay.
    Ends with 1 when a run could not be read or a figure not drawn; the rest is written all the same.
    """
    from egalitarian.lab.report.write import write_report

    written = write_report(
        Store(choices.existing(runs)), choices.named("--out", out), tuple(experiments or ()), replace=replace
    )
    shows_reports.say_report(Console(highlight=False), written)
    if not written.complete:
        raise typer.Exit(1)


@app.command()
def check(
    experiments: Annotated[list[str] | None, typer.Argument(metavar="[EXPERIMENT]...", help="Default: all.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail, too, on cells that are not run, not decided or not on record.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Write what the runs say as the file of verdicts.")
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """The paper's numbers beside ours, cell by cell: median, spread, n and a verdict.

    Inside is within the seeds that passed; undecided is above all of these while others did not pass.
    Ends with 1 when the runs contradict the verdict on record (lab/paper/_verdicts.toml), or one could not be read.
    """
    from egalitarian.lab.report.check import check as judge
    from egalitarian.lab.report.check import to_record
    from egalitarian.lab.report.recorded import load_record

    console = Console(highlight=False)
    checked = judge(Store(choices.existing(runs)), tuple(experiments or ()))
    shows_reports.say_verdicts(console, checked)
    if record is not None:
        choices.own_file(record, "[[verdicts]]").write_text(to_record(checked.verdicts, load_record()), encoding="utf-8")
        console.print(f"Written: [bold]{escape(str(record))}[/bold]; say why where a cell is not inside.", soft_wrap=True)
    if not checked.ends_well(strict=strict):
        raise typer.Exit(1)


@app.command()
def toy(
    eps: Annotated[str, typer.Option("--eps", help="Comma-separated: sizes of the weak feature for the curves.")] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("toy"),
    quick: Annotated[bool, typer.Option("--quick", help="Smaller samples: seconds instead of a minute.")] = False,
) -> None:
    """The solvable problem of Section 3: simulation against theory, as printed and as corrected."""
    from egalitarian.lab.report.toy import toy_report

    console = Console(highlight=False)
    with console.status("simulating"):
        done = toy_report(choices.numbers("--eps", eps), out, quick)
    shows_reports.say_toy(console, done)


@app.command()
def bench(
    themes: Annotated[
        list[str] | None, typer.Argument(metavar="[THEME]...", help="kernels, step, experiment, clock.")
    ] = None,
    device: Device = "auto",
    threads: Threads = 1,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", metavar="N,...", help="How many seeds at once; default: 1,8 (step on a GPU: 1,8,64; clock: 8)."
        ),
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: seconds, to see that it works.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the tables, numbers and pictures.")] = Path("bench"),
) -> None:
    """What EGD costs on this machine: kernels, a training step, a whole experiment.

    All ways to the polar factor with their error; a step with and without EGD for the paper's networks and a GPT's
    matrices, beside Muon and other packages where installed; addition-97 trained to 95 %. Minutes on a GPU, a quarter of
    an hour on a CPU; Ctrl-C keeps what is measured. `clock`, only if named, trains the paper's SGD on six tasks, too.
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
            console.print("Stopped; what was measured is written.")
            raise typer.Exit(130)


@app.command()
def tune(
    family: Annotated[
        str, typer.Argument(metavar="FAMILY", help="addition, multiplication, parity, mnist, transformer, cifar, or all.")
    ],
    methods: SomeMethods = None,
    device: Device = "auto",
    threads: Threads = 1,
    size: Annotated[
        int | None, typer.Option("--size", help="The window's side, instead of the plan's: 3 has 9 points, 5 has 25.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="Begin nothing more after so long; what is found is written.")
    ] = None,
    changes: Changes = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", help="A TOML file with families of your own; default: the lab's.")
    ] = None,
    jobs: JobsAtOnce = 1,
    runs: Runs = Path("runs"),
    data: DataFolder = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for tuned-FAMILY.json and tuned.md.")] = Path("tuned"),
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: to see that it works; the numbers mean nothing.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Even over a file with more points, or by other rules.")
    ] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say what it would cost on a GPU.")] = False,
) -> None:
    """Every method with the learning rate and decay that suit it, then on fresh seeds: a fair table (docs/tuning.md).

    A grid of the same size for every method, moved until its best point is inside, chosen on a validation split. Ctrl-C is
    safe; the same command goes on. Ends with 1 when --minutes were too few.
    """
    choices.use_data(data)
    from egalitarian.lab.tuning.job import Job, begin, carry_out, show
    from egalitarian.lab.tuning.plan import chosen, load_plan, shrunk
    from egalitarian.lab.tuning.says import say_estimate

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
            raise SpecError(f"--replace must come without --jobs, got {jobs}: processes share a file; move it away")
        in_time = side_by_side(Jobs(console, job.commands(begin(job), threads, size, plan), jobs, minutes))
        show(job, console)
    else:
        in_time = carry_out(job, console)
    if not in_time:
        console.print("Time is over; everything is stored, and the same command goes on from here.")
        raise typer.Exit(TIME_OVER if BESIDE in os.environ else 1)


@app.command()
def data(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="mnist, cifar-10; default: both.")] = None,
    get: Annotated[bool, typer.Option("--fetch", help="Get what is missing or corrupt.")] = False,
    folder: DataFolder = None,
) -> None:
    """The data sets: which files are there and right, which are missing, and how to get them.

    --fetch downloads from the official sources, goes on where it was stopped, and checks every byte; a corrupt file is
    kept beside as NAME.corrupt. Ends with 1 when a fetch fails or a file is corrupt.
    """
    console = Console(highlight=False)
    place, sets = (folder or default_folder()).expanduser(), shelf.chosen(names or ())
    looked = shelf.look(sets, place)
    failed = False
    if get:
        try:
            failed = not shelf.fetched(console, sets, place)
        except KeyboardInterrupt:
            print("Stopped; what has come is kept, and the same command goes on from there.", file=sys.stderr)
            raise typer.Exit(130) from None
        looked = shelf.look(sets, place)
    shelf.say(console, looked, place)
    if failed or not shelf.all_usable(looked):
        raise typer.Exit(1)


def side_by_side(jobs: Jobs) -> bool:
    """Whether all were done in time; what did not end well, or was stopped, ends the command."""
    ended = jobs.run()
    failed = {name: how for name, how in ended.items() if how not in (0, STOPPED, TIME_OVER)}
    if failed:
        named = ", ".join(f"{name} ({how})" for name, how in failed.items())
        print(f"egalitarian: {len(failed)} of {len(ended)} did not end well: {named}; see above", file=sys.stderr)
    if STOPPED in ended.values():
        raise Interrupted
    if failed:
        raise typer.Exit(1)
    return TIME_OVER not in ended.values()


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
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
            print("Stopped; everything is stored. The same command goes on from here.", file=sys.stderr)
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
    print("Stopped at once; what the last checkpoint holds is stored, and the same command goes on.", file=sys.stderr)
    return 130
