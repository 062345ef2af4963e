"""May the coarse polar factor become a default? Exact, fast and coarse on six tasks, at EGD's tuned settings.

    PYTHONPATH=src python benchmarks/tiers.py --data FOLDER               # all, on a GPU where there is one
    PYTHONPATH=src python benchmarks/tiers.py --only parity --steps 3 4 5 # one task; and coarse with so many steps
    PYTHONPATH=src python benchmarks/tiers.py --quick --out /tmp/try      # does it run? Its numbers are worth nothing

The settings are the best points of results/superseded/tuned-*.json. The seeds, from 100 on, had no part in any choice:
8, parity 32.
Writes tiers_HARDWARE_DATE.json, .md and .png after every run. The same command with the same --date resumes: what the JSON
file has is not trained again. With --minutes nothing is started that would probably not end in time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

import egalitarian as eg
from egalitarian.lab.config import Experiment, PolarSettings, SpecError, load
from egalitarian.lab.problems import DataError
from egalitarian.lab.report.figures import OKABE_ITO, WIDTH, styled
from egalitarian.lab.runs import Progress, Silent, Stop, Store, environment, hardware, sweep, write_atomically
from egalitarian.lab.training import Ensemble, Stepper

BEGAN = time.monotonic()
ROOT = Path(__file__).parents[1]
RTOL = 1e-6
"""Directions below it are rounding noise of a float32 gradient: the reference leaves them out."""
STRONG = 1e-3
"""Directions above it are those that fast and coarse are meant for. Both shares are of the largest singular value."""
CONSTANT = "COARSE_STEPS"
"""The library's number of coarse steps, where it is a constant of a module and not an argument."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A task, the recommended form of EGD on it, and what `--quick` shrinks."""

    name: str
    """As in results/superseded/tuned-NAME.json."""
    title: str
    method: str
    seeds: range = range(100, 108)
    quick: Mapping[str, Any] = field(default_factory=dict)


FAMILIES = (
    Family("addition", "addition mod 97", "egd-after", quick={"epochs": 16}),
    Family("multiplication", "multiplication mod 97", "egd-after", quick={"epochs": 16}),
    Family("parity", "sparse parity, k = 3", "egd-after", range(100, 132), {"epochs": 3}),
    Family("mnist", "MNIST, 1000 images", "egd", quick={"epochs": 4}),
    Family("transformer", "transformer, mod 97", "egd-sgd", quick={"epochs": 2}),
    Family(
        "cifar",
        "CIFAR-10, labels shuffled",
        "egd-after",
        quick={"epochs": 2, "task.train_size": 256, "task.test_size": 128},
    ),
)


@dataclass(frozen=True)
class Tier:
    """A precision; for coarse perhaps with a number of steps that is not the library's."""

    precision: str
    steps: int | None = None

    @property
    def name(self) -> str:
        return self.precision if self.steps is None else f"{self.precision}, {self.steps} steps"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `eg.Polar`, or settings of the lab's `polar`."""
        own = {} if self.steps is None or not is_argument() else {"steps": self.steps}
        return {"precision": self.precision, **own}


LOOKS = {
    "exact": ("black", "o"),
    "fast": ("blue", "s"),
    "coarse": ("vermillion", "D"),
    "coarse, 3 steps": ("orange", "^"),
    "coarse, 4 steps": ("green", "v"),
    "coarse, 5 steps": ("purple", "P"),
}
"""Colour and marker of each tier."""


def look(name: str) -> dict[str, Any]:
    colour, marker = LOOKS.get(name, ("sky", "X"))
    return {"color": OKABE_ITO[colour], "marker": marker}


def is_argument() -> bool:
    """Whether `eg.Polar` takes the number of steps."""
    return any(item.name == "steps" for item in dataclasses.fields(eg.Polar))


def constants() -> list[Any]:
    """The library's modules that have the constant."""
    with contextlib.suppress(ImportError):
        importlib.import_module("egalitarian.kernels.half")
    return [each for name, each in list(sys.modules.items()) if name.startswith("egalitarian") and hasattr(each, CONSTANT)]


def tiers(
    asked: Sequence[int], device: torch.device, precisions: Sequence[str] = ("exact", "fast", "coarse")
) -> list[Tier]:
    """Every precision that the library has, and coarse with the numbers of steps that were asked for."""
    found = [Tier(precision) for precision in precisions if is_known(precision)]
    if Tier("coarse") not in found:
        print("this library has no precision 'coarse' yet: it is left out", flush=True)
        return found
    usual = [getattr(module, CONSTANT) for module in constants()]
    print(f"coarse has {usual[0] if usual else 'an unknown number of'} steps", flush=True)
    for tier in (Tier("coarse", steps) for steps in asked if steps not in usual):
        if is_argument() or has_effect(tier, device):
            found.append(tier)
        else:
            print(f"{tier.name}: the number of steps cannot be chosen here; left out", flush=True)
    return found


def is_known(precision: str) -> bool:
    try:
        eg.Polar(precision=precision)  # type: ignore[arg-type]
        PolarSettings(precision=precision)  # type: ignore[arg-type]
    except (ValueError, SpecError):
        return False
    return True


@contextlib.contextmanager
def steps_of(tier: Tier) -> Iterator[None]:
    """Inside, coarse factors take the tier's number of steps. Nothing to do where that is an argument."""
    modules = constants() if tier.steps is not None and not is_argument() else []
    before = [getattr(module, CONSTANT) for module in modules]
    try:
        set_constants(modules, [tier.steps] * len(modules))
        yield
    finally:
        set_constants(modules, before)


def has_effect(tier: Tier, device: torch.device) -> bool:
    """Whether the number of steps changes a factor; on a CPU another algorithm may compute it."""
    usual = probe(device)
    with steps_of(tier):
        return not torch.equal(usual, probe(device))


def set_constants(modules: Sequence[Any], values: Sequence[Any]) -> None:
    """Sets the constant everywhere, and forgets what was computed from it."""
    for module, value in zip(modules, values, strict=True):
        setattr(module, CONSTANT, value)
    for name, module in list(sys.modules.items()):
        if name.startswith("egalitarian.kernels"):
            for each in list(vars(module).values()):
                if hasattr(each, "cache_clear"):
                    each.cache_clear()


def probe(device: torch.device) -> Tensor:
    """A coarse factor of a matrix with weak directions."""
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, 128, generator=draw) for size in (256, 320))
    return eg.polar((left * torch.logspace(0, -4, 128) @ right.mT).to(device), precision="coarse")  # type: ignore[arg-type]


@dataclass
class Results:
    """The rows of a benchmark and their file."""

    stem: Path
    about: Row
    rows: list[Row]

    @staticmethod
    def read(name: str, given: argparse.Namespace, device: torch.device) -> Results:
        """The file's rows, if there is one."""
        slug = "-".join(re.findall(r"[a-z0-9]+", hardware(device).lower())) or "unknown"
        given.out.mkdir(parents=True, exist_ok=True)
        stem = given.out / f"{name}_{slug}_{given.date}{'_quick' if given.quick else ''}"
        file = stem.with_name(f"{stem.name}.json")
        rows = json.loads(file.read_text())["rows"] if file.exists() else []
        return Results(stem, {**environment(device), "date": given.date, "quick": given.quick}, rows)

    def has(self, **key: Any) -> bool:
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, row: Row) -> None:
        """One more row, safe on the disk."""
        made = {part: self.about[part] for part in ("hardware", "torch", "source", "commit")}
        self.rows.append({**row, **made, "when": environment(torch.device(self.about["device"]))["when"]})
        self.write("json", json.dumps({"environment": self.about, "rows": self.rows}, indent=1) + "\n")

    def write(self, ending: str, content: str | bytes) -> None:
        write_atomically(self.stem.with_name(f"{self.stem.name}.{ending}"), content)

    def heading(self, title: str) -> list[str]:
        """Title, machine and versions; a warning where the rows come from several states of the source."""
        about = self.about
        versions = f"torch {about['torch']}, Python {about['python']}, egalitarian {about['egalitarian']}"
        sources = list(dict.fromkeys(row["source"] for row in self.rows))
        several = f" **Rows of {len(sources)} states of the source: {', '.join(sources)}.**" if len(sources) > 1 else ""
        quick = " **A quick try: the numbers are worth nothing.**" if about["quick"] else ""
        return [f"# {title}", "", f"{about['hardware']}, {versions}, {about['date']}.{several}{quick}", ""]


class Deadline:
    """Whether a run would probably end in time: the longest of its kind so far is the guess."""

    def __init__(self, minutes: float | None) -> None:
        self._end = math.inf if minutes is None else BEGAN + 60 * minutes
        self._longest: dict[str, float] = {}

    def allows(self, kind: str) -> bool:
        return time.monotonic() + self._longest.get(kind, 0.0) < self._end

    def took(self, kind: str, seconds: float) -> None:
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))


class Notes(Silent):
    """Prints what a sweep has to say, such as a lack of memory."""

    def note(self, text: str) -> None:
        print(text, flush=True)


def tuned(family: Family, tier: Tier, quick: bool) -> Experiment:
    """The family's experiment at the tuned point of its method, with this tier."""
    tuned = ROOT / "results" / "superseded"
    plan = tomllib.loads((tuned / "tuning.toml").read_text())["families"][family.name]
    best = json.loads((tuned / f"tuned-{family.name}.json").read_text())["methods"][family.method]["best"]
    link = f"methods.{family.method}.transform.0"
    values = {"measure.spectra": "snapshots", **{f"{link}.{key}": value for key, value in tier.options.items()}}
    return load(
        plan["experiment"],
        best["changes"],
        added=plan.get("added", {}),
        values={**values, **(family.quick if quick else {})},
    )


def first_errors(experiment: Experiment, method: str, seeds: Sequence[int], device: torch.device) -> Row:
    """Errors of the factors that the first step takes, |P - U Vᵀ|_F / sqrt(r) against a float64 SVD of the gradient."""
    ensemble = Ensemble(experiment, seeds, device)
    stepper = Stepper(experiment.method(method), ensemble.parameters, experiment.training.warmup)
    plan = eg.matrices(ensemble.parameters, include=experiment.method(method).targets, stack=True)
    parameters = {entry.name: entry.parameter for entry in plan.taken}
    ensemble.begin(0)
    ensemble.backward(ensemble.take(ensemble.choices(0)[0]))
    stepper.add_decay()
    gradients = {name: stacked(parameter.grad) for name, parameter in parameters.items()}
    stepper.step()
    found = {name: compared(G, stacked(parameters[name].grad)) for name, G in gradients.items()}
    squares, ranks, _ = (sum(parts) for parts in zip(*found.values(), strict=True))
    error, strong_error = (squares / ranks).sqrt().median(1).values.tolist()
    return {
        "error": error,
        "strong_error": strong_error,
        "errors": {name: (square / rank)[0].sqrt().median().item() for name, (square, rank, _) in found.items()},
        "largest_singular_value": max(top.max().item() for _, _, top in found.values()),
    }


def stacked(grad: Tensor | None) -> Tensor:
    """Matrices (seeds, out, in), in float64."""
    assert grad is not None
    return grad.detach().flatten(2).double().clone()


def compared(G: Tensor, P: Tensor, shares: tuple[float, float] = (RTOL, STRONG)) -> tuple[Tensor, Tensor, Tensor]:
    """|P - U Vᵀ|² and the rank by matrix, over all directions and over the strong ones, (2, seeds); the norms of P.

    Directions below the first share of the largest singular value are 0 in the reference, those above the second strong.
    """
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    every, strong = ((S / S[:, :1] > share).double() for share in shares)
    square = (P - (U * every[:, None]) @ Vh).square().sum((1, 2))
    strong_square = ((P @ Vh.mT - U) * strong[:, None]).square().sum((1, 2))
    ranks = torch.stack([every.sum(1), strong.sum(1)])
    return torch.stack([square, strong_square]).cpu(), ranks.cpu(), torch.linalg.matrix_norm(P, 2).cpu()


def trained(family: Family, tier: Tier, given: argparse.Namespace, device: torch.device) -> Row:
    """A row: this family with this tier, all seeds as one batch."""
    seeds = list(family.seeds[:2] if given.quick else family.seeds)
    with steps_of(tier), tempfile.TemporaryDirectory() as folder:
        experiment = tuned(family, tier, given.quick)
        stop = Stop.of(experiment, family.method)
        row = first_errors(experiment, family.method, seeds, device)
        store, start = Store(Path(folder)), time.perf_counter()
        found = sweep(experiment, family.method, seeds, store, device, stop=stop, listener=Notes())
        seconds = time.perf_counter() - start
        timings = store.find(found[0].run).timings
    steady = [1e3 * each["training"] for each in timings if each["seeds"] == len(seeds) and each["epoch"] > 1]
    return {
        "family": family.name,
        "title": family.title,
        "tier": tier.name,
        "method": family.method,
        "settings": list(experiment.changes),
        "budget": stop.epochs,
        "threshold": stop.threshold,
        "steps_per_epoch": experiment.steps_per_epoch,
        **row,
        "seconds": seconds,
        "ms_per_epoch": statistics.median(steady) if steady else None,
        "seeds": [seed_row(progress, stop) for progress in found],
    }


def seed_row(progress: Progress, stop: Stop) -> Row:
    """A diverged seed lacks epochs: they count as accuracy 0."""
    outcome = progress.outcome
    return {
        "seed": progress.run.seed,
        "crossed": outcome.crossed,
        "epochs": outcome.epochs,
        "mean_train_accuracy": outcome.total_train_accuracy / (stop.epochs if outcome.diverged else outcome.epochs),
        "diverged": outcome.diverged,
    }


def has_threshold(row: Row) -> bool:
    return bool(row["threshold"] < 1)


def passed(row: Row) -> int:
    return sum(seed["crossed"] is not None for seed in row["seeds"])


def scores(row: Row) -> list[float]:
    """By seed: the epoch that passed, infinite if none did; mean training accuracy in % where there is no threshold."""
    if has_threshold(row):
        return [math.inf if seed["crossed"] is None else seed["crossed"] for seed in row["seeds"]]
    return [100 * seed["mean_train_accuracy"] for seed in row["seeds"]]


def score_text(row: Row) -> str:
    """Median (range)."""
    values = scores(row)
    write: Callable[[float], str] = (
        (lambda value: f"> {row['budget']}" if math.isinf(value) else f"{value:g}")
        if has_threshold(row)
        else (lambda value: f"{value:.2f} %")
    )
    return f"{write(statistics.median(values))} ({write(min(values))} to {write(max(values))})"


def verdict(row: Row, rows: Sequence[Row]) -> str:
    """The gate: at most one seed fewer passes than with exact, and the median is within exact's range."""
    exact = next((each for each in rows if each["family"] == row["family"] and each["tier"] == "exact"), None)
    if exact is None or row["tier"] == "exact":
        return ""
    fewer, middle, theirs = passed(exact) - passed(row), statistics.median(scores(row)), scores(exact)
    if fewer > 1:
        return f"no: {fewer} seeds fewer pass"
    if min(theirs) <= middle <= max(theirs):
        return "yes"
    better = (middle < min(theirs)) == has_threshold(row)
    return "yes, better than every exact seed" if better else "no: worse than every exact seed"


def line(row: Row, rows: Sequence[Row]) -> str:
    many = len(row["seeds"])
    share = f"{passed(row)} of {many}" if has_threshold(row) else f"{many} seeds"
    per_epoch = "" if row["ms_per_epoch"] is None else f"{row['ms_per_epoch']:.1f}"
    errors = f"{row['error']:.1e} | {row['strong_error']:.1e}"
    numbers = f"{errors} | {row['largest_singular_value']:.3f} | {per_epoch} | {row['seconds']:.1f}"
    task = f"{row['title']}, {row['steps_per_epoch']} steps an epoch"
    return f"| {task} | {row['tier']} | {share} | {score_text(row)} | {numbers} | {verdict(row, rows)} |"


def publish(results: Results) -> None:
    """The table and the figure."""
    lines = [
        *results.heading("Exact, fast and coarse polar factors on six tasks"),
        "EGD at its tuned settings (results/superseded/tuned.md), seeds from 100 on, all seeds of a row as one batch. "
        "Epochs to the threshold of test accuracy, counted from 0: median (range). CIFAR-10: mean training accuracy over "
        "all epochs.",
        "",
        "Error: of the factor of the first gradient, |P - U Vᵀ|_F / sqrt(r) against a float64 SVD with cut-off "
        f"{RTOL:g}; all matrices together, median over seeds. Strong: the same over directions above {STRONG:g} of the "
        "largest. Largest: the factor's largest singular value. ms: an epoch of training, all seeds. Seconds: the whole "
        "run, with measuring.",
        "",
        "May be a default: at most one seed fewer passes than with exact, and the median is within exact's range, or "
        "better than all of it.",
        "",
        "| task | tier | passed | epochs, or accuracy | error | strong | largest | ms | seconds | may be a default |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(line(row, results.rows) for row in ordered(results.rows)),
        "",
        f"![error against epochs]({results.stem.name}.png)",
        "",
    ]
    results.write("md", "\n".join(lines))
    results.write("png", draw(results.rows))


def ordered(rows: Sequence[Row]) -> list[Row]:
    """By family and tier, in whichever order they were trained."""
    names = [family.name for family in FAMILIES]
    known = [*LOOKS, *(row["tier"] for row in rows)]
    return sorted(rows, key=lambda row: (names.index(row["family"]), known.index(row["tier"])))


@styled
def draw(rows: Sequence[Row]) -> bytes:
    """A panel for each task: the factor's error on the first gradient, and the epochs; medians, with the range."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    shown: dict[str, Any] = {}
    for axis, family in zip(panels, FAMILIES, strict=True):
        own = [row for row in ordered(rows) if row["family"] == family.name]
        for row in own:
            values = [row["budget"] if math.isinf(value) else value for value in scores(row)]
            middle = statistics.median(values)
            low, high = middle - min(values), max(values) - middle
            mark = axis.errorbar(row["error"], middle, [[low], [high]], capsize=2, linestyle="", **look(row["tier"]))
            shown.setdefault(row["tier"], mark)
        axis.set(xscale="log", xlim=(1e-8, 3.0), title=family.title, xlabel="error of the first factor")
        axis.set_xticks([1e-8, 1e-6, 1e-4, 1e-2, 1])
        counts = family.name != "cifar"
        axis.set_ylabel("epochs to the threshold" if counts else "training accuracy, %")
        if counts:
            top = max(value for row in own for value in scores(row) if math.isfinite(value))
            axis.set_ylim(0, 1.1 * top)
            axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=6)
    return png(figure)


def png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, metadata={"Software": None})
    return picture.getvalue()


def options(about: str | None) -> argparse.ArgumentParser:
    """What both benchmarks of tiers take."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, nargs="*", default=[3, 4, 5], metavar="N", help="coarse with so many steps, too"
    )
    parser.add_argument("--minutes", type=float, help="since the start; no run begins that would probably end later")
    parser.add_argument("--quick", action="store_true", help="small and short: does it run?")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--date", default=date.today().isoformat(), help="in the files' names; today")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    names = [family.name for family in FAMILIES]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--data", type=Path, help="folder with MNIST and CIFAR-10, as docs/data.md describes it")
    given = parser.parse_args(arguments)
    if given.data:
        os.environ["EGALITARIAN_DATA"] = str(given.data)
    device, deadline = torch.device(given.device), Deadline(given.minutes)
    if device.type == "cpu":
        torch.set_num_threads(1)
    results, rivals = Results.read("tiers", given, device), tiers(given.steps, device)
    for family in (family for family in FAMILIES if family.name in given.only):
        for tier in rivals:
            if results.has(family=family.name, tier=tier.name):
                print(f"{family.name}, {tier.name}: known", flush=True)
                continue
            if not deadline.allows(family.name):
                print(f"{family.name}, {tier.name}: no time left; the same command resumes", flush=True)
                continue
            try:
                row = trained(family, tier, given, device)
            except DataError as error:
                print(f"{family.name}: {error}", flush=True)
                break
            deadline.took(family.name, row["seconds"])
            results.add(row)
            publish(results)
            print(line(row, results.rows), flush=True)


if __name__ == "__main__":
    main()
