"""`write_report`: everything a store has to say, as files. The same store gives the same bytes, whenever and wherever."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from egalitarian.lab.analysis.gather import Gathered, gather
from egalitarian.lab.analysis.verdicts import Verdict, judge, tally
from egalitarian.lab.config import catalog
from egalitarian.lab.config.contents import Contents, FigurePlan, load_contents
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.report.figures import curves, distances, learning, shuffles, spectra, trajectories
from egalitarian.lab.report.figures.slim import slim
from egalitarian.lab.report.figures.style import save
from egalitarian.lab.report.page import Page, Picture, html, readme
from egalitarian.lab.report.provenance import estimates, provenance, run_record, variants_table
from egalitarian.lab.report.render import Table, latex, markdown, to_csv
from egalitarian.lab.report.summary import overview, said_of_cost
from egalitarian.lab.report.tables.epochs import build
from egalitarian.lab.runs.store import Store

Draw = Callable[[Gathered, Sequence[Experiment], Sequence[str]], Figure]
T = TypeVar("T")

LIST = "files.txt"
"""Of what a report wrote, by which the next one knows what to remove."""
SIGNED = "# what `egalitarian report` wrote here: the next one removes what it does not write again"
"""The list's first line: another file of that name is nobody's list."""
KINDS: dict[str, tuple[Draw, str]] = {
    "curves": (curves.draw_curves, curves.CAPTION),
    "learning": (learning.draw_learning, learning.CAPTION),
    "shuffles": (shuffles.draw_shuffles, shuffles.CAPTION),
    "spectra": (spectra.draw_spectra, spectra.CAPTION),
    "distances": (distances.draw_distances, distances.CAPTION),
    "trajectories": (trajectories.draw_trajectories, trajectories.CAPTION),
}


class ReportError(ValueError):
    """A report that cannot be written."""


@dataclass(frozen=True)
class Report:
    """What was written, and what could not be read or drawn."""

    out: Path
    paths: tuple[Path, ...]
    verdicts: tuple[Verdict, ...]
    runs: int
    """That count."""
    variants: int
    """Stored runs of other settings: listed, not counted."""
    removed: tuple[Path, ...]
    """Files of an earlier report that this one has no place for."""
    remarks: tuple[str, ...]
    """What is stored and counts nowhere."""
    warnings: tuple[str, ...]
    """Runs that could not be read."""
    errors: tuple[str, ...]
    """Tables and figures that could not be made."""
    cost: tuple[str, ...]
    """The time that each table's runs took, in words."""

    @property
    def complete(self) -> bool:
        """Whether everything could be read and made."""
        return not self.warnings and not self.errors


def write_report(store: Store, out: Path, experiments: Sequence[str] = (), *, replace: bool = False) -> Report:
    """Tables, figures, verdicts and a page into `out`, of the named experiments (names, or paths of TOML files) or of all.

    What an earlier report wrote there and this one does not is removed; files that no report wrote stay.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
        ReportError: `out` is a file, or cannot be written; or, unless `replace` is set, it has a README.md or an index.html
            that no report wrote, or holds a report of more runs.
    """
    if out.exists() and not out.is_dir():
        raise ReportError(f"out must be a folder, got the file {out}; name another with --out")
    gathered = gather(store, experiments)
    there = _runs_there(out)
    if len(gathered.runs) < there and not replace:
        raise ReportError(
            f"{out} must not hold a report of more runs, got one of {there} and {len(gathered.runs)} stored now; name "
            f"another folder with --out, or add --replace"
        )
    foreign = [name for name in ("README.md", "index.html") if (out / name).exists() and _listed(out) is None]
    if foreign and not replace:
        raise ReportError(
            f"out must be a new folder, or one that a report wrote, got {out} with a {foreign[0]} that none did; name "
            f"another with --out, or add --replace"
        )
    contents = contents_for(gathered)
    with _writable(out):
        return _Writing(out, gathered, contents, store.root.resolve().name).all()


def _runs_there(out: Path) -> int:
    """How many runs the report in a folder is of; 0 where there is none that can be read."""
    try:
        said = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        return sum(method["n"] for methods in said["experiments"].values() for method in methods.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0


def contents_for(gathered: Gathered) -> Contents:
    """The paper's tables and figures of these experiments, and those of ours that have runs."""
    names = [experiment.name for experiment in gathered.experiments]
    run = names if gathered.named else {summary.experiment for summary in gathered.runs}
    return load_contents().of(names).with_own(gathered.experiments).without_empty(run)


class _Writing:
    """One report in the making."""

    def __init__(self, out: Path, gathered: Gathered, contents: Contents, folder: str) -> None:
        self.out, self.gathered, self.contents, self.folder = out, gathered, contents, folder
        self.paths: list[Path] = []
        self.errors: list[str] = []

    def all(self) -> Report:
        gathered = self.gathered
        made = [self._attempt(plan.name, partial(build, plan, self.contents, gathered)) for plan in self.contents.tables]
        tables = tuple(table for table in made if table is not None)
        for table in tables:
            self._table(table)
        drawn = [self._attempt(plan.name, partial(self._picture, plan)) for plan in self.contents.figures]
        verdicts = tuple(judge(self.contents, gathered))
        seen = overview(self.contents, gathered, verdicts)
        self._write("verdicts.csv", to_csv([verdict.record() for verdict in verdicts]))
        self._write("summary.csv", to_csv([run_record(run) for run in (*gathered.runs, *gathered.variants)]))
        summary = {"verdicts": tally(verdicts), "experiments": estimates(gathered)}
        self._write("summary.json", json.dumps(summary, indent=1) + "\n")
        page = Page(
            title=_title(gathered),
            runs=len(gathered.runs),
            folder=self.folder,
            toy=(self.out / "toy").is_dir(),
            tuned=(self.out / "tuned.md").is_file(),
            tables=tables,
            pictures=tuple(picture for picture in drawn if picture is not None),
            verdicts=verdicts,
            overview=seen,
            provenance=provenance(gathered),
            variants=variants_table(gathered.variants),
            remarks=gathered.remarks,
            warnings=gathered.warnings,
            errors=tuple(self.errors),
        )
        if verdicts:
            self._write("SUMMARY.md", seen.markdown(page.title, f"From {page.runs} stored runs. {page.summary}."))
        self._write("index.html", html(page))
        self._write("README.md", readme(page))
        removed = tuple(clear(self.out, self.paths))
        listed = sorted(path.relative_to(self.out).as_posix() for path in self.paths)
        self._write(LIST, "\n".join([SIGNED, *listed]) + "\n")
        counts = (len(gathered.runs), len(gathered.variants))
        told = (gathered.remarks, gathered.warnings, tuple(self.errors), tuple(said_of_cost(seen.spent)))
        return Report(self.out, tuple(self.paths), verdicts, *counts, removed, *told)

    def _attempt(self, name: str, make: Callable[[], T]) -> T | None:
        """One table or figure that fails does not lose the others."""
        try:
            return make()
        except OSError:
            raise
        except Exception as error:
            self.errors.append(f"{name} could not be made: {type(error).__name__}: {error}")
            return None

    def _table(self, table: Table) -> None:
        self._write(f"tables/{table.name}.md", markdown(table, "#"))
        self._write(f"tables/{table.name}.csv", to_csv(table.records))
        self._write(f"tables/{table.name}.tex", latex(table))

    def _picture(self, plan: FigurePlan) -> Picture:
        if plan.kind == "toy":
            return self._toy(plan)
        draw, caption = KINDS[plan.kind]
        experiments = self.gathered.named_in(plan.experiments)
        run = [method for method in plan.methods if any(self.gathered.of(each.name, method) for each in experiments)]
        if not run:
            way = f"`egalitarian run {' '.join(plan.experiments)}`"
            return Picture(plan.heading, f"Nothing of it is stored: {way} trains it.", "")
        figure = draw(self.gathered, experiments, run)
        with tempfile.TemporaryDirectory(prefix=".figure-", dir=self.out) as folder:
            for file in save(figure, Path(folder) / plan.name):
                slim(file)
                self._write(f"figures/{file.name}", file.read_bytes())
        return Picture(plan.heading, caption, f"figures/{plan.name}")

    def _toy(self, plan: FigurePlan) -> Picture:
        """Drawn by another command, and shown where it lies beside."""
        made = (self.out / "toy" / f"{plan.name}.svg").is_file()
        way = f"`egalitarian toy --out {self.out.name}/toy`"
        caption = f"Simulated and drawn by {way}." if made else f"Not drawn yet: {way} does."
        return Picture(plan.heading, caption, f"toy/{plan.name}" if made else "")

    def _write(self, name: str, content: str | bytes) -> None:
        """Whole, or not at all."""
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.draft")
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
        self.paths.append(path)


def clear(out: Path, written: Collection[Path]) -> Iterator[Path]:
    """Removes what the list of an earlier report names and this one did not write; only below `out`, and only files."""
    for path in (out / name for name in _listed(out) or ()):
        if path not in written and path.is_file() and path.resolve().is_relative_to(out.resolve()):
            path.unlink()
            yield path
            with contextlib.suppress(OSError):  # others are in there
                path.parent.rmdir()


def _listed(out: Path) -> list[str] | None:
    """What an earlier report wrote; None where there is no list of one."""
    try:
        first, *names = (out / LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return names if first == SIGNED else None


def _title(gathered: Gathered) -> str:
    """The paper's, or the titles of one's own experiments where the report is of nothing else."""
    own = [experiment.title for experiment in gathered.experiments if experiment.name not in catalog.names()]
    if own and len(own) == len(gathered.experiments):
        return "; ".join(own)
    return "Egalitarian gradient descent: the paper against our runs"


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(
            f"{error.filename or out} must be writable, got: {reason}; free some space, fix the permissions, or name "
            f"another folder with --out"
        ) from error
