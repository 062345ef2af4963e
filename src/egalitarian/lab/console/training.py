"""Commands that train: grok, run, tune."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from egalitarian.lab import config
from egalitarian.lab.config import SpecError, changed_values
from egalitarian.lab.console.display import follow
from egalitarian.lab.console.grok import MethodRuns, compare, describe_comparison
from egalitarian.lab.console.options import (
    EVIDENCE,
    STORE,
    AllMethodsOption,
    ChangesOption,
    DataOption,
    DeviceOption,
    EpochsOption,
    ExperimentArgument,
    FinalOption,
    HaveOption,
    JobsOption,
    ListedExperimentsArgument,
    MethodsOption,
    OnOption,
    PastOption,
    RunsOption,
    SeedsOption,
    SlurmOption,
    TablesOption,
    TensorBoardOption,
    ThreadsOption,
    choose_methods,
    distinct_experiments,
    existing_evidence,
    own_folder,
    parse_seeds,
    picture_file,
    split_each,
    split_methods,
)
from egalitarian.lab.console.settings import unchanged_settings
from egalitarian.lab.console.tables import put, trained_table
from egalitarian.lab.executors import BUSY, LOST, STOPPED, TIME_OVER, Executor, Pool, Ray, Slurm
from egalitarian.lab.runs import (
    Interrupted,
    Progress,
    Request,
    Store,
    choose_device,
    configure_process,
    named_device,
    stored_progress,
    threshold_text,
    train_requests,
    unfinished,
)


def grok(
    experiment: ExperimentArgument = "addition-97",
    methods: MethodsOption = None,
    seeds: SeedsOption = "0",
    device: DeviceOption = "auto",
    threads: ThreadsOption = 1,
    full: Annotated[bool, typer.Option("--full", help="Train slow methods to the end, too.")] = False,
    changes: ChangesOption = None,
    runs: RunsOption = Path("runs"),
    data: DataOption = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Picture to write.", show_default="grok-EXPERIMENT.png"),
    ] = None,
) -> None:
    """Watch networks grok: EGD and SGD live, then a table and a picture.

    The table has epochs and seconds until test accuracy passes the threshold. Without --full, slow methods stop early, and
    the output names them.

    Everything is stored: Ctrl-C loses nothing, and the same command resumes.

    On a CPU, addition-97 takes about a minute, with --full about seven.
    """
    configure_process(threads, data)
    from egalitarian.lab.console.grok import draw_grok

    console, names = Console(highlight=False), split_methods(methods)
    chosen = config.load(experiment, changes or (), names)
    names = names and choose_methods(chosen, names)
    store, where, numbers = Store(runs), choose_device(device), parse_seeds(seeds)
    target = picture_file(picture or Path(f"grok-{chosen.name}{'-changed' if changes else ''}.png"))
    threshold = threshold_text(chosen.measure.threshold)
    until = f"until test accuracy passes {threshold}" if chosen.measure.has_threshold else "for a fixed budget"
    console.print(f"[bold]{escape(chosen.heading)}[/bold]: training {until}")
    compared: list[MethodRuns] = []
    try:
        with follow(console) as listener:
            for each in compare(chosen, names, numbers, store, where, listener, full):
                compared.append(each)
    finally:  # after Ctrl-C, too: the epochs so far
        compared = [each for each in compared if any(run.last for run in each.runs)]
        if compared:
            for part in describe_comparison(chosen, compared, store):
                put(console, part)
            draw_grok(store, chosen, compared, target)
            console.print(f"Picture: [bold]{escape(str(target))}[/bold]", soft_wrap=True)
            console.print(f"Stored runs: {escape(str(store.root / chosen.name))}", soft_wrap=True)


def run(
    experiments: ListedExperimentsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Every experiment of the paper.")] = False,
    beyond: Annotated[bool, typer.Option("--beyond", help="Every experiment beyond the paper.")] = False,
    tables: TablesOption = None,
    method: MethodsOption = None,
    seeds: SeedsOption = "0-7",
    changes: ChangesOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 1,
    epochs: EpochsOption = None,
    past: PastOption = None,
    final: FinalOption = False,
    jobs: JobsOption = 1,
    on: OnOption = None,
    slurm: SlurmOption = None,
    runs: RunsOption = Path("runs"),
    have: HaveOption = None,
    data: DataOption = None,
    tensorboard: TensorBoardOption = None,
) -> None:
    """Train methods and store the runs; resume unfinished ones.

    A seed passes when its test accuracy exceeds the threshold. A larger --epochs extends stored runs that have not passed,
    a larger --past those that have.

    A seed's result does not depend on the device or on the other seeds, up to rounding. One exception: in float32 on a
    GPU, the lab takes the fast polar factor. That is another run than on a CPU (docs/lab.md).
    """
    configure_process(threads, data)
    console, names = Console(highlight=False), split_methods(method)
    if tensorboard and (on or jobs > 1):
        other, value = ("--on", on) if on else ("--jobs", jobs)
        raise SpecError(f"--tensorboard must come without {other}, got {value}; leave one of them out")
    asked = [
        *(experiments or ()),
        *(name for number in split_each(tables) for name in config.of_table(number)),
        *(config.names() if everything else ()),
        *(config.beyond() if beyond else ()),
    ]
    loaded = config.load_each(distinct_experiments(asked), changes or (), names)
    have = existing_evidence(have)
    numbers, values = tuple(parse_seeds(seeds)), changed_values(changes or ())
    executor = _executor(on, slurm or (), device, threads, jobs, runs)
    where = named_device(device) if on else choose_device(device)
    requests = [
        Request(
            experiment=name,
            method=own,
            seeds=numbers,
            device=str(where),
            threads=threads,
            runs=runs,
            values=values,
            epochs=epochs,
            past=past,
            final=final and (name in (experiments or ()) or each.has_final),
            data=data,
            have=have,
            preloaded=each,
        )
        for name, each in loaded.items()
        for own in choose_methods(each, names)
    ]
    _print_changes(console, requests, changes or ())
    done = _train(console, requests, executor, tensorboard)
    put(console, trained_table(done))
    trained = any(progress.evidence is None for each in done for progress in each)
    console.print(escape(_next_command(runs, have, trained, everything=bool(changes))), soft_wrap=True)


def _next_command(runs: Path, have: Path | None, trained: bool, everything: bool) -> str:
    """Where the runs are, and the command that makes a report. With evidence, runs alone are a part of them."""
    if have is None:
        return f"Stored in {runs}. `egalitarian report` makes tables and figures of all stored runs."
    report = f"`egalitarian report --runs {have}` makes tables and figures of all"
    if not trained:
        return f"Nothing was trained: every seed is complete in {have}. {report}."
    options = [(" --all", everything), (f" --runs {runs}", runs != STORE), (f" --out {have}", have != EVIDENCE)]
    pack = f"`egalitarian pack{''.join(text for text, needed in options if needed)}`"
    return f"Stored in {runs}. {pack} adds them to the evidence, then {report}."


def _print_changes(console: Console, requests: Sequence[Request], changes: Sequence[str]) -> None:
    """Prints which settings were changed, and which own settings of a method a change does not reach."""
    if changes:
        notice = f"Changed: {', '.join(changes)}. These runs are stored separately and do not count as the paper's."
        kept = [line for each in requests for line in unchanged_settings(each.loaded, each.method, changes)]
        for line in (notice, *kept):
            console.print(f"[dim]{escape(line)}[/dim]")


MakeExecutor = Callable[[Console, Sequence[Request]], Executor]


def _executor(
    on: str | None, slurm: Sequence[str], device: str, threads: int, jobs: int, runs: Path
) -> MakeExecutor | None:
    """What makes the executor; None for this process alone. Errors of `--on` and `--slurm` come up here."""
    if slurm and on != "slurm":
        raise SpecError(f"--slurm must come with --on slurm, got {slurm[0]!r} without it; leave it out, or add --on slurm")
    if on is None:
        return None if jobs == 1 else lambda console, left: Pool(console, left, jobs)
    if named_device(device).index is not None:
        raise SpecError(f"--device must be auto, cpu or cuda with --on, got {device!r}; each task sees its own GPU alone")
    gpu, address = named_device(device).type == "cuda", on.removeprefix("ray:")
    if on == "ray" or (on.startswith("ray:") and address):
        Ray.check(address if on != "ray" else None)
        return lambda console, left: Ray(console, left, jobs, runs, address if on != "ray" else None, gpu, threads)
    if on == "slurm":
        options = Slurm.check(slurm, gpu, threads)
        return lambda console, left: Slurm(console, left, jobs, runs, options)
    raise SpecError(f"--on must be ray, ray:HOST:PORT or slurm, got {on!r}; leave it out for this machine")


def _train(
    console: Console, requests: Sequence[Request], executor: MakeExecutor | None, tensorboard: Path | None
) -> Sequence[Sequence[Progress]]:
    """Trains the requests, here or by an executor, after trying one step of each that is not stored."""
    left = unfinished(requests, keep_damaged=executor is not None)
    for request in left:
        request.try_step()
    if executor is None:
        with follow(console, curves=False, tensorboard=tensorboard) as listener:
            return train_requests(requests, listener)
    if left:
        run_executor(executor(console, left))
    if missing := [request.name for request in unfinished(requests)]:
        raise SpecError(f"every run must be stored by now, got none for {', '.join(missing)}; did a file change?")
    return stored_progress(requests)


def tune(
    family: Annotated[
        str, typer.Argument(metavar="FAMILY", help="addition, parity, mnist, transformer, cifar, all, or one of your plan.")
    ],
    methods: AllMethodsOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 1,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", metavar="N", min=0, help="Start nothing new after N minutes; results so far are written."
        ),
    ] = None,
    changes: ChangesOption = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Your own families in a TOML file, or the lab's plan `spectrum`.",
            show_default="the lab's",
        ),
    ] = None,
    jobs: JobsOption = 1,
    runs: RunsOption = Path("runs"),
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the results.")] = Path("tuned"),
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny search, to see that it works; its numbers mean nothing.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite a file that has more points or other rules.")
    ] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only count the points and epochs.")] = False,
) -> None:
    """Tune every method alike, then compare on fresh seeds.

    Every method gets as many points: a coarse grid of learning rates and decays over decades, points around the two best
    basins, and points for a third knob. They are compared on a validation split. Rules: docs/tuning.md.

    Ctrl-C loses nothing, and the same command resumes. Exits with 1 when --minutes ran out.
    """
    configure_process(threads, data)
    from egalitarian.lab.console.tuning import print_estimate, print_stored, tune_families
    from egalitarian.lab.tuning import Job, chosen, load_plan, shrunk

    console = Console(highlight=False)
    listed, names = load_plan(plan), tuple(split_methods(methods))
    families = [shrunk(each, quick) for each in chosen(listed, family)]
    where = (runs, own_folder("--out", out), choose_device(device))
    job = Job(families, names, tuple(changes or ()), *where, quick, replace, searches_only=jobs > 1)
    if estimate:
        job.check_settings()
        print_estimate(console, families, names)
        return
    if jobs > 1:
        if replace:
            raise SpecError(f"--replace must come without --jobs, got {jobs}; move the old file away, or leave out --jobs")
        pool = Pool(console, job.requests(threads, plan, data), jobs, minutes)
        try:
            in_time = run_executor(pool)
        except (Interrupted, typer.Exit):  # the page of all families has the results so far
            print_stored(job, Console(quiet=True), list(listed))
            raise
        print_stored(job, console, list(listed))
    else:
        in_time = tune_families(job, console, list(listed), minutes)
    if not in_time:
        console.print("The --minutes are over. Everything is stored; run the same command again to resume.")
        raise typer.Exit(1)


def run_executor(executor: Executor) -> bool:
    """Carries out all requests and returns whether there was time for all. A failure, or a stop, ends the command."""
    ended = executor.run()
    failed = {name: status for name, status in ended.items() if status not in (0, STOPPED, TIME_OVER)}
    if failed:
        named = ", ".join(f"{name} ({_ending(status)})" for name, status in failed.items())
        again = [status < 0 or status in ENDINGS for status in failed.values()]
        hints = [] if all(again) else ["see their errors above"]
        hints += ["the same command resumes"] if any(again) else []
        print(f"egalitarian: {len(failed)} of {len(ended)} jobs failed: {named}; {'; '.join(hints)}", file=sys.stderr)
    if STOPPED in ended.values():
        raise Interrupted
    if failed:
        raise typer.Exit(1)
    return TIME_OVER not in ended.values()


ENDINGS = {BUSY: "another process trains its runs", LOST: "lost"}


def _ending(status: int) -> str:
    """How a job failed; one that was killed has printed no error."""
    if status in ENDINGS:
        return ENDINGS[status]
    if status > 0:
        return f"exit code {status}"
    return f"killed by signal {-status}{', perhaps for lack of memory' if -status == signal.SIGKILL else ''}"
