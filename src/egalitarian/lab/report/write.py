"""`write_report`: tables, figures, verdicts and pages of a store, as files. The same store always gives the same bytes."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from egalitarian.lab.analysis import Gathered, TaskSpeed, Verdict, gather, judge, tally, task_speeds
from egalitarian.lab.config import Contents, FigurePlan, load_contents, load_each, names
from egalitarian.lab.report.charts import CHARTS, Chart, chart_tasks
from egalitarian.lab.report.commands import Commands
from egalitarian.lab.report.figures import FIGURES, TASKS, caption_of, draw_tasks, save, slim, task_rows
from egalitarian.lab.report.findings import findings
from egalitarian.lab.report.html import Extras, embedded, html_page
from egalitarian.lab.report.page import Page, Picture, readme
from egalitarian.lab.report.render import Table, latex, markdown, to_csv
from egalitarian.lab.report.summary import Overview, cost_lines, overview, provenance_table, variants_table
from egalitarian.lab.report.tables import build_table
from egalitarian.lab.runs import OTHER_FOLDER, Source, writable, write_atomically

T = TypeVar("T")

LIST = "files.txt"
"""The list of what a report wrote, from which the next report knows what to remove."""
LIST_HEADER = "# what `egalitarian report` wrote here: the next one removes what it does not write again"
"""The first line of that list. A file of the same name without it is not the list of a report."""
TOY = (
    "ζ is the size of the start, s half the margin of the training data, ε the variance of the slow feature. One law means "
    "that training and test points come from the same distribution."
)
"""What the toy problem's figures do not say themselves."""
DRAWN = ".figure-"
"""How the folder begins that a figure is drawn in; a killed process may leave one behind."""


class ReportError(ValueError):
    """A report that cannot be written."""


@dataclass(frozen=True)
class Report:
    """The files of a report, and what could not be read or drawn."""

    out: Path
    paths: tuple[Path, ...]
    verdicts: tuple[Verdict, ...]
    runs: int
    """Runs that count."""
    variants: int
    """Stored runs of other settings: listed, not counted."""
    removed: tuple[Path, ...]
    """Files of an earlier report that this one did not write again."""
    remarks: tuple[str, ...]
    """What is stored and counts nowhere."""
    warnings: tuple[str, ...]
    """Runs that could not be read."""
    errors: tuple[str, ...]
    """Tables and figures that could not be made."""
    cost: tuple[str, ...]
    """The time of each table's runs."""

    @property
    def complete(self) -> bool:
        """Whether everything could be read and made."""
        return not self.warnings and not self.errors


def write_report(
    store: Source,
    out: Path,
    experiments: Sequence[str] = (),
    *,
    replace: bool = False,
    html: bool = False,
    tuned: Sequence[Table] = (),
) -> Report:
    """Writes tables, figures, verdicts and pages into `out`.

    Files of an earlier report that this one does not write again are removed. Files that no report wrote stay.

    Args:
        experiments: names, or paths of TOML files; by default all.
        replace: whether to overwrite a larger report, or pages that no report wrote.
        html: whether to write index.html, too: everything in one file.
        tuned: tables of the fair comparison, for that file.

    Raises:
        SpecError: an experiment that is neither the lab's nor a file.
        ReportError: `out` is a file; or, unless `replace` is set, it has a README.md or an index.html that no report wrote,
            or holds a report of more runs.
        StoreError: `out` cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise ReportError(f"out must be a folder, got the file {out}; name another with --out")
    gathered = gather(store, experiments)
    earlier = _runs_of_report(out)
    if len(gathered.runs) < earlier and not replace:
        raise ReportError(
            f"{out} must not hold a report of more runs, got one of {earlier} and {len(gathered.runs)} stored now; name "
            f"another folder with --out, or add --replace"
        )
    foreign = [name for name in ("README.md", "index.html") if (out / name).exists() and _listed(out) is None]
    if foreign and not replace:
        raise ReportError(
            f"out must be a new folder, or one that a report wrote, got {out} with a {foreign[0]} that none did; name "
            f"another with --out, or add --replace"
        )
    contents = contents_for(gathered)
    arguments = {own.name: asked for asked, own in load_each(experiments).items()}
    with writable(out, OTHER_FOLDER):
        out.mkdir(parents=True, exist_ok=True)
        return _Writing(out, gathered, contents, Commands(arguments, html), tuned).write_all()


def _runs_of_report(out: Path) -> int:
    """The number of runs in a folder's report; 0 without a report that can be read."""
    try:
        summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        return sum(method["n"] for methods in summary["experiments"].values() for method in methods.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0


def contents_for(gathered: Gathered) -> Contents:
    """The paper's tables and figures of these experiments, and those of ours that have runs."""
    asked = [experiment.name for experiment in gathered.experiments]
    run = asked if gathered.named else {summary.experiment for summary in gathered.runs}
    return load_contents().of(asked).with_own(gathered.experiments).without_empty(run)


class _Writing:
    """One report while it is written."""

    def __init__(
        self, out: Path, gathered: Gathered, contents: Contents, commands: Commands, tuned: Sequence[Table]
    ) -> None:
        self.out, self.gathered, self.contents = out, gathered, contents
        self.commands, self.tuned = commands, tuple(tuned)
        self.shown: set[str] = set()
        """Pictures of the toy problem that are on the page already."""
        self.paths: list[Path] = []
        self.errors: list[str] = []

    def write_all(self) -> Report:
        for left in self.out.glob(f"{DRAWN}*"):
            shutil.rmtree(left)
        gathered, contents = self.gathered, self.contents
        made = [self._attempt(plan.name, partial(build_table, plan, contents, gathered)) for plan in contents.tables]
        tables = tuple(table for table in made if table is not None)
        for table in tables:
            self._write_table(table)
        drawn = [self._attempt(plan.name, partial(self._picture, plan)) for plan in contents.figures]
        pictures = tuple(picture for picture in drawn if picture is not None)
        verdicts = tuple(judge(contents, gathered))
        summary = overview(contents, gathered, verdicts)
        self._write_numbers(verdicts)
        speeds = self._attempt("findings", self._speeds) or []
        top = self._attempt("overview", partial(self._top, speeds)) if self.commands.html else None
        page = self._page(tables, pictures, verdicts, summary)
        pages = _pages(page, None if top is None else self._extras(page, top, speeds))
        written = [*self.paths, *(self.out / name for name in pages)]
        removed = tuple(clear(self.out, written))
        listed = sorted(path.relative_to(self.out).as_posix() for path in written)
        self._write(LIST, "\n".join([LIST_HEADER, *listed]) + "\n")
        for name, text in pages.items():  # after the list, without which the next report would take them for a user's own
            self._write(name, text)
        return Report(
            out=self.out,
            paths=tuple(self.paths),
            verdicts=verdicts,
            runs=len(gathered.runs),
            variants=len(gathered.variants),
            removed=removed,
            remarks=gathered.remarks,
            warnings=gathered.warnings,
            errors=tuple(self.errors),
            cost=tuple(cost_lines(summary.spent)),
        )

    def _page(
        self, tables: tuple[Table, ...], pictures: tuple[Picture, ...], verdicts: tuple[Verdict, ...], summary: Overview
    ) -> Page:
        return Page(
            title=_title(self.gathered),
            runs=len(self.gathered.runs),
            toy=(self.out / "toy").is_dir(),
            tuned=(self.out / "tuned.md").is_file(),
            html=self.commands.html,
            tables=tables,
            pictures=pictures,
            verdicts=verdicts,
            overview=summary,
            provenance=provenance_table(self.gathered),
            variants=variants_table(self.gathered.variants),
            remarks=self.gathered.remarks,
            warnings=self.gathered.warnings,
            errors=tuple(self.errors),
        )

    def _write_numbers(self, verdicts: Sequence[Verdict]) -> None:
        runs = (*self.gathered.runs, *self.gathered.variants)
        self._write("verdicts.csv", to_csv([verdict.csv_row() for verdict in verdicts]))
        self._write("summary.csv", to_csv([run.csv_row() for run in runs]))
        summary = {"verdicts": tally(verdicts), "experiments": self.gathered.estimates()}
        self._write("summary.json", json.dumps(summary, indent=1) + "\n")

    def _attempt(self, name: str, make: Callable[[], T]) -> T | None:
        """A table or figure that fails becomes an error of the report, and the others are made."""
        try:
            return make()
        except OSError:
            raise
        except Exception as error:
            self.errors.append(f"{name} could not be made: {type(error).__name__}: {error}")
            return None

    def _write_table(self, table: Table) -> None:
        self._write(f"tables/{table.name}.md", markdown(table, "#"))
        self._write(f"tables/{table.name}.csv", to_csv(table.records))
        self._write(f"tables/{table.name}.tex", latex(table))

    def _picture(self, plan: FigurePlan) -> Picture:
        if plan.kind == "toy":
            return self._toy_picture(plan)
        experiments = self.gathered.named_in(plan.experiments)
        run = [method for method in plan.methods if any(self.gathered.of(each.name, method) for each in experiments)]
        if not run:
            command = self.commands.train(plan.experiments)
            return Picture(plan.name, plan.heading, f"Nothing of it is stored: `{command}` trains it.", "")
        figure = FIGURES[plan.kind].draw(self.gathered, experiments, run)
        caption = caption_of(plan.kind, self.gathered, experiments, run)
        command = self.commands.figure(plan.experiments, run)
        drawn = Picture(plan.name, plan.heading, caption, f"figures/{plan.name}", command)
        image = self._save(figure, drawn.file)
        if not self.commands.html:
            return drawn
        make = CHARTS.get(plan.kind)  # pictures of colours are pictures alone
        chart = make and self._attempt(f"the interactive {plan.name}", partial(make, self.gathered, experiments, run))
        return _interactive(drawn, image, chart)

    def _save(self, figure: Figure, name: str) -> str:
        """Writes the picture, and returns it as an address."""
        with tempfile.TemporaryDirectory(prefix=DRAWN, dir=self.out) as folder:
            files = save(figure, Path(folder) / Path(name).name)
            for file in files:
                slim(file)
                self._write(f"{Path(name).parent.as_posix()}/{file.name}", file.read_bytes())
            return embedded(files)

    def _toy_picture(self, plan: FigurePlan) -> Picture:
        """Another command draws it. It is shown if its file is in the subfolder toy."""
        made = (self.out / "toy" / f"{plan.name}.svg").is_file()
        command = f"egalitarian toy --out {shlex.quote(f'{self.out.name}/toy')}"
        if not made:
            return Picture(plan.name, plan.heading, f"Not drawn yet: `{command}` does.", "")
        image = ""
        if self.commands.html and plan.name not in self.shown:
            files = [self.out / "toy" / f"{plan.name}.{ending}" for ending in ("svg", "png")]
            image = embedded([file for file in files if file.is_file()])
        self.shown.add(plan.name)
        caption = f"{TOY} Simulated and drawn by `{command}`."
        return Picture(plan.name, plan.heading, caption, f"toy/{plan.name}", command, image)

    def _speeds(self) -> list[TaskSpeed]:
        """Of the experiments of tables of runs."""
        listed = dict.fromkeys(name for plan in self.contents.tables if plan.runs for name in plan.experiments)
        return task_speeds(self.gathered, list(listed))

    def _top(self, speeds: Sequence[TaskSpeed]) -> Picture:
        """The picture of all tasks."""
        rows, title = task_rows(speeds), "All tasks: the epochs that each method needs"
        if not rows:
            command = self.commands.train(())
            return Picture("overview", title, f"No task has two methods of which one passes: `{command}` trains.", "")
        drawn = Picture("overview", title, TASKS, "figures/overview", self.commands.report)
        return _interactive(drawn, self._save(draw_tasks(speeds), drawn.file), chart_tasks(rows, speeds))

    def _extras(self, page: Page, top: Picture, speeds: Sequence[TaskSpeed]) -> Extras:
        missing = self.commands.missing(self.contents, self.gathered)
        absent = [name for _, names in missing for name in names]
        train = self.commands.train(list(dict.fromkeys(absent)))
        return Extras(
            top=top,
            findings=findings(self.contents, self.gathered, page.verdicts, speeds, train),
            tuned=self.tuned,
            commands={plan.name: self.commands.table(plan) for plan in self.contents.tables},
            report=self.commands.report,
            tune="egalitarian tune --out report",
            missing=tuple((heading, self.commands.train(names)) for heading, names in missing),
        )

    def _write(self, name: str, content: str | bytes) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        self.paths.append(path)


def _interactive(drawn: Picture, image: str, chart: Chart | None) -> Picture:
    return drawn._replace(image=image, chart=chart, clock="" if chart is None else chart.clock_note)


def _pages(page: Page, extras: Extras | None) -> dict[str, str]:
    """The text of each page, by the name of its file."""
    pages = {"README.md": readme(page)} | ({} if extras is None else {"index.html": html_page(page, extras)})
    if page.verdicts:
        sentence = f"From {page.runs} stored runs. {page.summary}."
        pages["SUMMARY.md"] = page.overview.markdown(page.title, sentence)
    return pages


def clear(out: Path, written: Collection[Path]) -> Iterator[Path]:
    """Removes files that an earlier report listed and this one did not write. Only files below `out` are removed."""
    for path in (out / name for name in _listed(out) or ()):
        if path not in written and path.is_file() and path.resolve().is_relative_to(out.resolve()):
            path.unlink()
            yield path
            with contextlib.suppress(OSError):  # the folder has other files
                path.parent.rmdir()


def _listed(out: Path) -> list[str] | None:
    """The files of an earlier report; None without its list."""
    try:
        first, *files = (out / LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return files if first == LIST_HEADER else None


def _title(gathered: Gathered) -> str:
    """The paper's, or the titles of the user's own experiments if the report has no others."""
    own = [experiment.title for experiment in gathered.experiments if experiment.name not in names()]
    if own and len(own) == len(gathered.experiments):
        return "; ".join(own)
    return "Egalitarian gradient descent: the paper against our runs"
