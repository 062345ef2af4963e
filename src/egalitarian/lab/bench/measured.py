"""A measured theme and its files: a table, the numbers, a picture. Ctrl-C keeps the rows so far, a kill the processes."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import egalitarian
from egalitarian.lab.bench.theme import BenchRow, Setup, Theme, message
from egalitarian.lab.report import Block, markdown_lines
from egalitarian.lab.report.figures import CYCLE, WIDTH, styled
from egalitarian.lab.runs import OTHER_FOLDER, environment, writable, write_atomically

MARKERS = "os^Dv"
MORE = ("#8C8C8C", "#7A5195", "#A05A00")
"""Colours of pictures with more kinds of methods than the palette has colours."""
STRIPE = 0.8
"""Of a group's stripe: what its methods take."""
Report = Callable[[str], None]
UNITS = {"ms": "ms", "seconds": "seconds"}


@dataclass(frozen=True)
class Measured:
    """The rows of a theme, with the environment they were measured in."""

    theme: Theme
    rows: tuple[BenchRow, ...]
    environment: dict[str, Any]
    quick: bool = False
    complete: bool = True
    """False if it was stopped."""
    date: str = ""
    """The day in the names of files; empty: that of the environment."""

    @property
    def tables(self) -> list[dict[str, Any]]:
        return self.theme.table(self.rows)

    @property
    def stem(self) -> str:
        """File name: `kernels_nvidia-h200_2026-11-15`. A quick or stopped measurement never replaces a complete one."""
        apart = ("_quick" if self.quick else "") + ("" if self.complete else "_partial")
        return f"{self.theme.name}_{slug(self.environment['hardware'])}_{self.day}{apart}"

    @property
    def day(self) -> str:
        return self.date or str(self.environment["when"][:10])

    @property
    def heading(self) -> str:
        where = self.environment
        threads = f"{where['threads']} thread" + ("s" if where["threads"] > 1 else "")
        text = f"{where['hardware']}, {threads}, torch {where['torch']}, Python {where['python']}, {self.day}"
        apart = ["--quick: small sizes, the numbers mean nothing"] if self.quick else []
        apart += [] if self.complete else ["stopped before all was measured"]
        return "; ".join([f"{text}; medians of n repeats, egalitarian {egalitarian.__version__}", *apart])

    @property
    def about(self) -> str:
        """How it was measured, and the meaning of columns and groups."""
        return "\n".join(filter(None, (self.theme.about, self.theme.legend(self.rows, self.quick))))

    def cells(self) -> list[list[str]]:
        """The table as text: group, method, numbers, note; a heading first."""
        theme, tables = self.theme, self.tables
        columns = theme.shown(tables)
        head = [theme.groups, "method", *(column.heading for column in columns), "note"]
        return [head] + [
            [row["group"], row["method"], *(column.write(row.get(column.key)) for column in columns), row["note"]]
            for row in tables
        ]

    def write(self, out: Path) -> list[Path]:
        """Writes the Markdown table, the raw numbers, and the picture if there is anything to draw."""
        files = [out / f"{self.stem}.{ending}" for ending in ("md", "json", "png")]
        picture = draw(self.theme, self.rows)
        with writable(out, OTHER_FOLDER):
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(files[0], self.markdown(files[2].name))
            write_atomically(files[1], json.dumps(self.plain(), indent=1, ensure_ascii=False) + "\n")
            if picture is None:
                return files[:2]
            write_atomically(files[2], picture)
        return files

    def markdown(self, picture: str) -> str:
        head, *body = self.cells()
        lines = [f"# {self.theme.title}", "", f"{self.heading}.", "", self.about, ""]
        lines += markdown_lines(head, [Block("", tuple(map(tuple, body)))], "l" * len(head))
        return "\n".join([*lines, "", f"![time by method]({picture})", ""])

    def plain(self) -> dict[str, Any]:
        theme = self.theme
        return {
            "theme": theme.name,
            "about": self.about,
            "baseline": theme.baseline,
            "ratio": "baseline over method" if theme.ratio_is_speedup else "method over baseline",
            "quick": self.quick,
            "complete": self.complete,
            "environment": self.environment,
            "rows": self.tables,
        }


def slug(hardware: str) -> str:
    """As part of a file's name: nvidia-h200."""
    return "-".join(re.findall(r"[a-z0-9]+", hardware.lower())) or "unknown"


class Parts:
    """What processes have measured, by name, in a file from which a rerun goes on.

    Every process is written at once. Parts of other code, versions or settings are left behind, with a message.
    """

    def __init__(self, name: str, basis: dict[str, Any], setup: Setup) -> None:
        self._basis, self._found = basis, dict[str, Any]()
        self.path: Path | None = None
        if setup.out is None:
            return
        day = setup.date or datetime.now(UTC).date().isoformat()
        quick = "_quick" if setup.quick else ""
        self.path = setup.out / f"{name}-parts_{slug(basis['hardware'])}_{day}{quick}.json"
        if not self.path.exists():
            return
        stored = self._stored(self.path)
        changed = [key for key in basis if stored["basis"].get(key) != basis[key]]
        if changed:
            left = f"{len(stored['parts'])} measured processes are not used, and will be overwritten"
            setup.note(f"{self.path}: {left}; changed since: {', '.join(changed)}.")
        else:
            self._found = stored["parts"]

    @staticmethod
    def _stored(path: Path) -> dict[str, Any]:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return {"basis": dict(stored["basis"]), "parts": dict(stored["parts"])}
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path} must have the parts of a benchmark, got another content; delete it, or name another --out"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> dict[str, Any]:
        return dict(self._found[name])

    def add(self, name: str, part: dict[str, Any]) -> None:
        self._found[name] = part
        if self.path is not None:
            content = {"basis": self._basis, "parts": self._found}
            with writable(self.path, OTHER_FOLDER):
                write_atomically(self.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def measure_theme(theme: Theme, setup: Setup) -> Measured:
    """All rows, or those before a user stopped it."""
    rows: list[BenchRow] = []
    complete = True
    try:
        for row in theme.rows(setup):
            rows.append(row)
    except KeyboardInterrupt:
        complete = False
    return Measured(theme, tuple(rows), environment(setup.device), setup.quick, complete, setup.date)


def apart(work: Callable[[Report], dict[str, Any]], report: Report) -> dict[str, Any]:
    """What the function returns in a process of its own, with as many threads; a RuntimeError if it fails or dies."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, work, torch.get_num_threads()))
    process.start()
    there.close()
    try:
        while isinstance(said := here.recv(), str):
            report(said)
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with status {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if "error" in said:
        raise RuntimeError(said["error"])
    return dict(said)


def _answer(pipe: Connection, work: Callable[[Report], dict[str, Any]], threads: int) -> None:
    """Ctrl-C is the parent's business. What other packages print is dropped. A parent that is gone ends the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    with (
        contextlib.suppress(BrokenPipeError),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        try:
            pipe.send(work(pipe.send))
        except BrokenPipeError:
            raise
        except Exception as error:
            pipe.send({"error": message(error)})


@styled
def draw(theme: Theme, rows: Sequence[BenchRow]) -> bytes | None:
    """A PNG: time on a logarithmic axis, a stripe for each group, a marker for each method; None if no row has a time.

    A method has the same height in every stripe, in the order of the key. Methods whose names begin with the same word
    share a colour. A filled marker is the plain time, a hollow one that inside a CUDA graph.
    """
    timed = [row for row in rows if row.numbers.get(theme.number)]
    if not timed:
        return None
    groups = list(dict.fromkeys(row.group for row in timed))
    methods = list(dict.fromkeys(row.method for row in timed))
    figure = Figure(figsize=(WIDTH, 1.6 + (0.2 + 0.06 * len(methods)) * len(groups)), layout="constrained")
    axis = figure.add_subplot()
    looks = _looks(methods)
    for row in timed:
        height = groups.index(row.group) + STRIPE * ((methods.index(row.method) + 0.5) / len(methods) - 0.5)
        _mark(axis, theme, row, height, looks[row.method])
    for line in range(0, len(groups), 2):
        axis.axhspan(line - 0.5, line + 0.5, color="0.96", lw=0, zorder=0)
    axis.set(xscale="log", xlabel=UNITS[theme.number], ylim=(len(groups) - 0.5, -0.5))
    axis.set_yticks(range(len(groups)), groups)
    axis.tick_params(axis="y", length=0)
    axis.set_title(f"{theme.title.partition(':')[0]}: {UNITS[theme.number]}")
    axis.grid(axis="y", visible=False)
    handles = [Line2D([], [], ls="", label=name, **look) for name, look in looks.items()]
    if theme.graph_key and any(row.numbers.get(theme.graph_key) for row in timed):
        handles.append(Line2D([], [], ls="", marker="o", color="#888888", mfc="none", label="hollow: in a CUDA graph"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    picture = io.BytesIO()
    figure.savefig(picture, metadata={"Software": None})
    return picture.getvalue()


def _mark(axis: Axes, theme: Theme, row: BenchRow, height: float, look: dict[str, Any]) -> None:
    axis.plot(row.numbers[theme.number], height, ls="", **look)
    in_graph = row.numbers.get(theme.graph_key)
    if in_graph:
        axis.plot(in_graph, height, ls="", mfc="none", **look)


def _looks(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour for each first word, and a marker for each method of it."""
    words = list(dict.fromkeys(_word(name) for name in methods))
    found: dict[str, dict[str, Any]] = {}
    for name in methods:
        index, place = words.index(_word(name)), sum(_word(other) == _word(name) for other in found)
        colours = (*CYCLE, *MORE)
        marker = MARKERS[(place + index // len(colours)) % len(MARKERS)]
        found[name] = {"color": colours[index % len(colours)], "marker": marker}
    return found


def _word(name: str) -> str:
    return name.split(" ")[0].rstrip(",")
