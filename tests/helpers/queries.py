"""Numbers on a page held to the files they come from: lines of a page with queries in braces.

tests/contracts/numbers/PAGE.toml holds the lines.

    {run EXPERIMENT METHOD WORD...}          results/summary.csv: `113 (108-122)`, median (smallest-largest) of its seeds
    {provisional EXPERIMENT METHOD WORD...}  the same of results/provisional/summary.csv
    {points FAMILY LR DECAY WORD...}         the seeds of one point of results/provisional/adamw-points.csv
    {tuned FAMILY METHOD WORD...}            the fresh seeds of results/superseded/tuned-FAMILY.json
    {spent FAMILY HARDWARE WORD}             of that file: `methods`, their `points`, or `minutes`
    {cell PATH | TEXT & TEXT | COLUMN | FORMAT}   of the row of a Markdown or CSV table that has all the texts
    {toy KEY, KEY | SETTING | WORD | FORMAT}   results/toy/toy-claims.csv at the points with that setting, or at `all`: the
                                             `printed` or `corrected` value, the simulation's `mean`, or that as `measured`:
                                             `1.5250 ± 0.0004`; `12 to 94` of several points. Without FORMAT the points at
                                             which the `printed` or `corrected` value holds: `144 of 144`
    {claims WHOSE WORD}                      how many claims are in it, of `all`, the `paper` or `ours`; with a word those
                                             that `hold`, hold `in part` or `fail` as printed
    {find PATH | PATTERN | FORMAT}           what the group of a regular expression matches first in a file
    {ratio QUERY // QUERY // FORMAT}         of the first numbers of two answers; also `product`, `difference` and
                                             `more`: 0.15 where the first is 15 % above the second
    {each NAME, NAME :: QUERY :: FORMAT :: WORD}   the query's number with every name for its `*`: `46 (42-50)`, mean
                                             (smallest-largest); or the `mean`, `smallest`, `largest`, `sum` alone

Words: `median`, `range`, `passed` (`8 of 8`), `steps` (instead of epochs), `trained` (one more than the epoch, which counts
from 0), `seeds=2-7` (those alone). Of `tuned` also `lr` and `decay`. Of `run` also the clock of one seed, as a
median: `ms` of an epoch, `training` (seconds through the epoch that passes), both without measuring, and `seconds` of the
whole run. A text of `cell` may be COLUMN=VALUE. One that is in no row may name the heading or the group above; of several
rows the first with the most texts that are whole cells is taken. FORMAT is Python's; `.1p` is `.1%` without the sign.

A rendered line must be in the page. Whitespace, bold, spaces in 12 000 and the kind of dash make no difference. A number
of the page that looks measured must be in such a line, or in an exempt text with its reason. The threshold of an experiment
needs neither: "epochs to 95 %", "passes 95 %".
"""

from __future__ import annotations

import csv
import json
import operator
import re
import statistics
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from documents import LINK, without_code

from egalitarian.lab.analysis import RunSummary, estimate
from egalitarian.lab.config import catalog
from egalitarian.lab.report import ToyReport
from egalitarian.lab.runs import Outcome
from egalitarian.lab.theory import ToyClaim, summarize

SEEDS_WORDS = ("median", "range", "passed", "steps", "trained")
CLOCK_WORDS = ("ms", "training", "seconds")
TOY_WORDS = ("printed", "corrected", "mean", "measured")
TOY = Path("results", "toy", "toy-claims.csv")
SUPERSEDED = Path("results", "superseded")
QUERY = re.compile(r"\{([^{}]*)\}")


class QueryError(Exception):
    """A query that has no answer, or a file of numbers that cannot be read; the message says why."""


# queries


def render(line: str, root: Path) -> str:
    """The line with every query's answer in its place."""
    return QUERY.sub(lambda query: answer(query[1], root), line)


def answer(query: str, root: Path) -> str:
    """What the stored results say, with hyphens for en dashes.

    Raises:
        QueryError: nothing is stored for it, or it is no query.
    """
    kind, _, rest = query.strip().partition(" ")
    if kind in OF_TWO:
        return _of_two(kind, rest, root)
    if kind not in ANSWERS:
        raise QueryError(f"a query begins with {', '.join((*ANSWERS, *OF_TWO))}, got {query!r}")
    return ANSWERS[kind](rest.strip(), root).replace("–", "-")


def _run(query: str, root: Path) -> str:
    return _of_summary(query, root / "results" / "summary.csv")


def _provisional(query: str, root: Path) -> str:
    return _of_summary(query, root / "results" / "provisional" / "summary.csv")


def _points(query: str, root: Path) -> str:
    family, lr, decay, *words = _at_least(query, "FAMILY LR DECAY")
    results = _found(_json, root / SUPERSEDED / f"tuned-{family}.json")
    rows = [
        row
        for row in _found(_csv, root / "results" / "provisional" / "adamw-points.csv")
        if (row["family"], float(row["lr"]), float(row["decay"])) == (family, float(lr), float(decay))
    ]
    if not rows:
        raise QueryError(f"adamw-points.csv has no point {lr}, {decay} of {family!r}")
    if results["score"] != "epochs":
        shares = sorted(100 * float(row["mean_train_accuracy"]) for row in rows)
        return f"{statistics.median(shares):.1f} % ({shares[0]:.1f}-{shares[-1]:.1f})"
    seeds = []
    for row in rows:
        crossed, epochs = int(row["crossed"]) if row["crossed"] else None, int(row["epochs"])
        state = "not passed" if crossed is None else "passed"
        seeds.append(_summary(family, row["method"], int(row["seed"]), state, crossed, epochs, epochs))
    return _in_words(seeds, words, results["steps_per_epoch"] if "steps" in words else None)


def _of_summary(query: str, path: Path) -> str:
    experiment, method, *words = _at_least(query, "EXPERIMENT METHOD")
    rows = [row for row in _found(_csv, path) if (row["experiment"], row["method"]) == (experiment, method)]
    rows = [row for row in rows if not _seed(row).differs]
    if not rows:
        methods = [row["method"] for row in _csv(path) if row["experiment"] == experiment]
        hint = _nearest(method, methods) if methods else _nearest(experiment, (row["experiment"] for row in _csv(path)))
        raise QueryError(f"{path.name} has no {method!r} of {experiment!r}{hint}")
    if len(words) == 1 and words[0] in CLOCK_WORDS:
        return format(statistics.median(_clock(row, words[0]) for row in rows), ".6g")
    steps = catalog.load(experiment).steps_per_epoch if "steps" in words else None
    return _in_words([_seed(row) for row in rows], words, steps)


def _clock(row: dict[str, str], word: str) -> float:
    if word == "training" and not row["crossed"]:
        raise QueryError(f"seed {row['seed']} of {row['method']!r} did not pass: its time to the threshold is not known")
    match word:
        case "ms":
            return float(row["ms_per_epoch"])
        case "training":
            return (int(row["crossed"]) + 1) * float(row["ms_per_epoch"]) / 1000
    return float(row["seconds"])


def _seed(row: dict[str, str]) -> RunSummary:
    """A line of summary.csv; what counts nowhere has some difference."""
    crossed, epochs = int(row["crossed"]) if row["crossed"] else None, int(row["epochs"])
    bound = epochs
    if row["state"] == "diverged":
        bound = max(epochs, catalog.load(row["experiment"]).method(row["method"]).epochs)
    differs = "" if row["counts"] == "yes" else row["differs"] or "counts nowhere"
    return _summary(row["experiment"], row["method"], int(row["seed"]), row["state"], crossed, bound, epochs, differs)


def _summary(
    experiment: str, method: str, seed: int, state: Any, crossed: int | None, bound: int, epochs: int, differs: str = ""
) -> RunSummary:
    outcome = Outcome(threshold=1.0, epochs=epochs, crossed=crossed, diverged=state == "diverged")
    budget = epochs + 1 if state == "unfinished" else bound
    return RunSummary(experiment, method, seed, "", outcome, budget, differs=differs)


def _in_words(seeds: Sequence[RunSummary], words: Sequence[str], steps: int | None) -> str:
    """The estimate over seeds, or the part of it that the words ask for."""
    asked, seeds = _chosen(seeds, words)
    if unknown := [word for word in asked if word not in SEEDS_WORDS]:
        raise QueryError(f"a word after the method is one of {', '.join(SEEDS_WORDS)} or seeds=0-7, got {unknown[0]!r}")
    if "steps" in asked and steps is None:
        raise QueryError("the steps of an epoch are not known")
    found = estimate(seeds, 1 if "trained" in asked else steps)
    parts = [word for word in asked if word not in ("steps", "trained")]
    if len(parts) > 1:
        raise QueryError(f"only one of {', '.join(parts)} can be asked for at a time")
    match parts:
        case ["median"]:
            return str(found.median)
        case ["range"]:
            return found.spread if found.low != found.high else f"{found.low}-{found.high}"
        case ["passed"]:
            return f"{found.passed} of {found.n}"
    return str(found)


def _chosen(seeds: Sequence[RunSummary], words: Sequence[str]) -> tuple[list[str], list[RunSummary]]:
    """The words without seeds=..., and the seeds that it names."""
    named = [word.removeprefix("seeds=") for word in words if word.startswith("seeds=")]
    others = [word for word in words if not word.startswith("seeds=")]
    if not named:
        return others, list(seeds)
    limits = re.fullmatch(r"(\d+)-(\d+)", named[0])
    if limits is None:
        raise QueryError(f"seeds are named as seeds=2-7, got {named[0]!r}")
    wanted = range(int(limits[1]), int(limits[2]) + 1)
    if missing := set(wanted) - {seed.seed for seed in seeds}:
        raise QueryError(f"there is no seed {min(missing)}")
    return others, [seed for seed in seeds if seed.seed in wanted]


def _tuned(query: str, root: Path) -> str:
    family, method, *words = _at_least(query, "FAMILY METHOD")
    path = root / SUPERSEDED / f"tuned-{family}.json"
    results = _found(_json, path)
    entries = results["methods"]
    if method not in entries:
        raise QueryError(f"{path.name} has no {method!r}{_nearest(method, entries)}")
    entry = entries[method]
    if not entry["complete"]:
        raise QueryError(f"{path.name}: {method!r} is not complete")
    match words:
        case ["lr" | "decay" as word]:
            return f"{entry['best'][word]:g}"
        case [*rest] if results["score"] != "epochs" and rest in ([], ["median"], ["range"]):
            shares = sorted(100 * seed["mean_train_accuracy"] for seed in entry["fresh"])
            median, spread = f"{statistics.median(shares):.1f}", f"{shares[0]:.1f}-{shares[-1]:.1f}"
            return {"median": median, "range": spread}.get("".join(rest), f"{median} % ({spread})")
    if results["score"] != "epochs":
        raise QueryError(f"{family} is judged by accuracy: there is no {' '.join(words)!r}")
    budget = entry["best"]["budget"]
    seeds = [
        _summary(
            results["experiment"],
            method,
            seed["seed"],
            "passed" if seed["crossed"] is not None else "diverged" if seed["diverged"] else "not passed",
            seed["crossed"],
            budget if seed["diverged"] else seed["epochs"],
            seed["epochs"],
        )
        for seed in entry["fresh"]
    ]
    return _in_words(seeds, words, results["steps_per_epoch"] if "steps" in words else None)


def _at_least(query: str, names: str) -> list[str]:
    words = query.split()
    if len(words) < len(names.split()):
        raise QueryError(f"{names} must be named, got {query!r}")
    return words


def _nearest(name: str, known: Iterable[str]) -> str:
    listed = list(dict.fromkeys(known))
    close = get_close_matches(name, listed, n=3, cutoff=0.5)
    return f"; it has {', '.join(close or listed)}"


def _spent(query: str, root: Path) -> str:
    """What the methods that were searched on some hardware took."""
    family, hardware, word = _at_least(query, "FAMILY HARDWARE WORD")[:3]
    entries = _found(_json, root / SUPERSEDED / f"tuned-{family}.json")["methods"].values()
    seconds = [[took for on, took in entry["spent"].items() if hardware in on] for entry in entries]
    searched = [entry for entry, took in zip(entries, seconds, strict=True) if took]
    if not searched:
        raise QueryError(f"nothing of {family!r} was searched on {hardware!r}")
    match word:
        case "methods":
            return str(len(searched))
        case "points":
            return str(sum(len(entry["points"]) for entry in searched))
        case "minutes":
            return f"{sum(map(sum, seconds)) / 60:.1f}"
    raise QueryError(f"spent tells of methods, points and minutes, got {word!r}")


# the toy problem


def _toy(query: str, root: Path) -> str:
    keys_, setting, word, form, *_ = [part.strip() for part in query.split(" | ")] + [""] * 3
    keys, words = [key.strip() for key in keys_.split(",")], set(setting.split()) - {"all"}
    if not setting or word not in TOY_WORDS:
        raise QueryError(f"toy is KEY | SETTING | WORD | FORMAT with a word of {', '.join(TOY_WORDS)}, got {query!r}")
    points = _found(toy_claims, root / TOY)
    if unknown := set(keys) - {point.key for point in points}:
        raise QueryError(f"{TOY.name} has no key {min(unknown)!r}{_nearest(min(unknown), (each.key for each in points))}")
    points = [point for point in points if point.key in keys and words <= set(point.setting.split())]
    if not points:
        raise QueryError(f"{TOY.name} has no point {setting!r} of {keys_!r}")
    if form:
        points.sort(key=lambda point: _value(point, word))
        texts = list(dict.fromkeys(_said(point, word, form) for point in points))
        return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
    if word not in ("printed", "corrected"):
        raise QueryError(f"what is {word} needs a FORMAT; the printed or corrected value holds at some of the points")
    held = sum(point.verdict == "holds" if word == "printed" else point.corrected_holds for point in points)
    return f"{held} of {len(points)}"


def _value(point: ToyClaim, word: str) -> float:
    return {"printed": point.printed, "corrected": point.corrected}.get(word, point.measured)


def _said(point: ToyClaim, word: str, form: str) -> str:
    value = _formatted(_value(point, word), form)
    return f"{value} ± {_formatted(point.standard_error, form)}" if word == "measured" else value


def _of_claims(query: str, root: Path) -> str:
    whose, _, word = query.partition(" ")
    points = _found(toy_claims, root / TOY)
    ours = [point for point in points if point.where == "not in the paper"]
    groups = {"all": points, "paper": [point for point in points if point not in ours], "ours": ours}
    if whose not in groups or word not in ("", "hold", "in part", "fail"):
        raise QueryError(f"claims is all, paper or ours, and hold, in part or fail, got {query!r}")
    counts = ToyReport(groups[whose], summarize(groups[whose]), [], root / TOY).printed
    return str(counts[word] if word else counts.total())


@cache
def toy_claims(path: Path) -> list[ToyClaim]:
    """Every point of every claim of the toy problem, as it is stored."""
    claims = []
    for row in _csv(path):
        cells: dict[str, Any] = {name: cell for name, cell in row.items() if name != "verdict"}
        numbers = {name: float(cells[name]) for name in cells.keys() - {"key", "where", "claim", "setting", "relation"}}
        claims.append(ToyClaim(**cells | numbers))
    return claims


# queries made of queries

OF_TWO: dict[str, Callable[[float, float], float]] = {
    "ratio": operator.truediv,
    "product": operator.mul,
    "difference": operator.sub,
    "more": lambda one, other: one / other - 1,
}


def _of_two(kind: str, query: str, root: Path) -> str:
    parts = [part.strip() for part in query.split("//")]
    if len(parts) != 3:
        raise QueryError(f"a {kind} is QUERY // QUERY // FORMAT, got {query!r}")
    one, other = (_number(answer(part, root)) for part in parts[:2])
    return _formatted(OF_TWO[kind](one, other), parts[2])


def _each(query: str, root: Path) -> str:
    names, asked, form, *rest = [part.strip() for part in query.split("::")] + [""] * 3
    if not (names and "*" in asked and form):
        raise QueryError(f"each is NAME, NAME :: QUERY with a * :: FORMAT :: WORD, got {query!r}")
    numbers = [_number(answer(asked.replace("*", name.strip()), root)) for name in names.split(",")]
    mean, least, most = (_formatted(each(numbers), form) for each in (statistics.fmean, min, max))
    parts = {"": f"{mean} ({least}-{most})", "mean": mean, "smallest": least, "largest": most}
    parts["sum"] = _formatted(sum(numbers), form)
    if rest[0] not in parts:
        raise QueryError(f"the last word of each is one of {', '.join(filter(None, parts))}, got {rest[0]!r}")
    return parts[rest[0]]


# tables


class Row(NamedTuple):
    """A row of a table, and where it stands."""

    cells: dict[str, str]
    above: str
    """Headings of the page and the group of rows it belongs to."""


def _cell(query: str, root: Path) -> str:
    path_, texts, column, *rest = [part.strip() for part in query.split(" | ")] + [""] * 3
    form, named = rest[0], [text.strip() for text in texts.split(" & ")]
    if not (path_ and texts and column):
        raise QueryError(f"a cell is PATH | TEXT & TEXT | COLUMN | FORMAT, got {query!r}")
    path = root / path_
    table = _found(_tables, path)
    headings = list(dict.fromkeys(heading for row in table for heading in row.cells))
    if column not in headings:
        raise QueryError(f"{path.name} has no column {column!r}{_nearest(column, headings)}")
    inside = {text for text in named if any(_holds(row, text) for row in table)}
    fitting = [
        row
        for row in table
        if column in row.cells and all(_holds(row, text) if text in inside else text in row.above for text in named)
    ]
    if not fitting:
        raise QueryError(f"{path.name} has no row with {' and '.join(map(repr, named))}")
    row = max(fitting, key=lambda each: sum(text in each.cells.values() for text in named))  # the first of the best
    return _formatted(_number(row.cells[column]), form) if form else row.cells[column]


def _holds(row: Row, text: str) -> bool:
    column, _, value = text.partition("=")
    if column in row.cells:
        return row.cells[column] == value
    return any(text in cell for cell in row.cells.values())


def _find(query: str, root: Path) -> str:
    path_, pattern, form, *_ = [part.strip() for part in query.split(" | ")] + [""] * 2
    path = root / path_
    found = re.search(pattern, _found(Path.read_text, path))
    if found is None or not found.groups():
        raise QueryError(f"{path.name} has nothing that matches {pattern!r} with a group, which is the answer")
    return _formatted(_number(found[1]), form) if form else found[1]


def _number(text: str) -> float:
    found = re.search(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", text))
    if found is None:
        raise QueryError(f"there is no number in {text!r}")
    return float(found[0])


def _formatted(number: float, form: str) -> str:
    try:
        text = format(100 * number, form[:-1] + "f") if form.endswith("p") else format(number, form)
        return re.sub(r"e\+?(-?)0*(\d)", r"e\1\2", text).replace("%", " %")
    except ValueError as error:
        raise QueryError(f"{form!r} is no format of a number: {error}") from None


@cache
def _tables(path: Path) -> list[Row]:
    """Every row of every table of a file; rows that only name a group are none."""
    if path.suffix == ".csv":
        return [Row(dict(row), "") for row in _csv(path)]
    rows: list[Row] = []
    titles: dict[int, str] = {}
    heading: list[str] | None = None
    group = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if title := re.match(r"(#+) (.*)", line):
            titles = {depth: text for depth, text in titles.items() if depth < len(title[1])} | {len(title[1]): title[2]}
        if not line.lstrip().startswith("|"):
            heading, group = None, ""
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if heading is None:
            heading = cells
        elif all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            continue
        elif cells[0] and not any(cells[1:]):
            group = cells[0].strip("*")
        else:
            named: dict[str, str] = {}
            for name, cell in zip(heading, cells, strict=False):
                named.setdefault(name, cell)
            rows.append(Row(named, "\n".join((*titles.values(), group))))
    return rows


@cache
def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _found(read: Any, path: Path) -> Any:
    if not path.is_file():
        raise QueryError(f"there is no file {path}")
    return read(path)


ANSWERS: dict[str, Callable[[str, Path], str]] = {
    "run": _run,
    "provisional": _provisional,
    "points": _points,
    "tuned": _tuned,
    "spent": _spent,
    "toy": _toy,
    "claims": _of_claims,
    "cell": _cell,
    "find": _find,
    "each": _each,
}


# pages


@dataclass(frozen=True)
class Normal:
    """A text without what makes no difference, and where each of its characters was."""

    text: str
    origin: Sequence[int] = field(repr=False)

    def find(self, part: str) -> list[tuple[int, int]]:
        """Where the (normal) part stands, numbers whole: 16 is not in 160, 2016 or 0.16."""
        part = part.strip()
        before, after = r"(?<!\d)(?<!\d[.,])" if part[:1].isdigit() else "", r"(?![.,]?\d)" if part[-1:].isdigit() else ""
        return [match.span() for match in re.finditer(before + re.escape(part) + after, self.text)]


GROUPED = re.compile(r"(?<![\w.])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)")
DASHES = str.maketrans("–−\u2011", "---")


def normalise(text: str) -> Normal:
    """One space for whitespace, hyphens for dashes, no bold, no spaces inside of numbers."""
    gone = {place for match in re.finditer(r"\*\*", text) for place in range(*match.span())}
    gone |= {place for match in GROUPED.finditer(text) for place in range(*match.span()) if text[place].isspace()}
    letters: list[str] = []
    origin: list[int] = []
    for place, letter in enumerate(text.translate(DASHES)):
        if place in gone:
            continue
        if letter.isspace():
            if not letters or letters[-1] == " ":
                continue
            letter = " "
        letters.append(letter)
        origin.append(place)
    return Normal("".join(letters), origin)


@dataclass(frozen=True)
class Numbers:
    """A file of tests/contracts/numbers."""

    file: Path
    page: Path
    lines: Sequence[str]
    exempt: Sequence[tuple[str, str]]
    """Texts, and why no stored result has their numbers."""


def load(file: Path, root: Path) -> Numbers:
    """Reads and checks one.

    Raises:
        QueryError: it says something else than it may.
    """
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    if unknown := set(table) - {"page", "lines", "exempt"}:
        raise QueryError(f"{file.name} has page, lines and exempt, got {sorted(unknown)[0]!r}")
    page, lines, exempt = root / str(table.get("page", "")), table.get("lines", []), table.get("exempt", [])
    if not page.is_file():
        raise QueryError(f"{file.name}: page must be a file of the repository, got {table.get('page')!r}")
    for line in lines:
        if not QUERY.search(line):
            raise QueryError(f"{file.name}: a line without a query proves nothing, got {line!r}; exempt it with the reason")
        if not re.search(r"[^\W\d]{2}|\|", QUERY.sub("", line)):
            raise QueryError(f"{file.name}: a number alone may be any; {line!r} needs some words of the page around it")
    for entry in exempt:
        if set(entry) != {"text", "why"} or not all(str(value).strip() for value in entry.values()):
            raise QueryError(f"{file.name}: an exempt text has text and why, both said, got {entry!r}")
    return Numbers(file, page, tuple(lines), tuple((entry["text"], entry["why"]) for entry in exempt))


def wrong(numbers: Numbers, root: Path) -> list[str]:
    """What the page does not say, or says otherwise than the results: with the query, its text and the closest line."""
    page, told = numbers.page.read_text(encoding="utf-8"), list[str]()
    normal = normalise(page)
    for line in numbers.lines:
        try:
            rendered = render(line, root)
        except QueryError as error:
            told.append(f"  query:    {line}\n  no answer: {error}")
            continue
        if not normal.find(normalise(rendered).text):
            told.append(f"  query:    {line}\n  rendered: {rendered}\n  closest:  {closest(rendered, page)}")
    for text, _ in numbers.exempt:
        if not normal.find(normalise(text).text):
            told.append(f"  exempt:   {text}\n  is not on the page\n  closest:  {closest(text, page)}")
    return told


def closest(text: str, page: str) -> str:
    """The line of the page that has most in common with a text, by its words and numbers."""
    wanted = Counter(re.findall(r"[\w.]+", normalise(text).text))

    def alike(line: tuple[int, str]) -> float:
        have = Counter(re.findall(r"[\w.]+", normalise(line[1]).text))
        return (wanted & have).total() - 0.01 * have.total()

    number, line = max(enumerate(page.splitlines(), 1), key=alike, default=(0, ""))
    return f"line {number}: {line.strip()[:400]}"


# coverage

_NUMBER = r"(?<![\w.])\d+(?:[.,]\d+)*(?:e[-+]?\d+)?"
_BOUND = rf"(?:> )?{_NUMBER}"
MEASURED = (
    re.compile(rf"{_BOUND}(?: ?%)? \({_BOUND}(?:-| to ){_BOUND}(?![\d-]|\.\d)"),
    re.compile(rf"{_NUMBER} of \d+(?!\w)"),
    re.compile(
        rf"(?:{_NUMBER}(?:-| to | and ))?{_NUMBER}"
        r"(?: (?:ms|s|seconds|min|minutes|hours|times|points)(?!\w)| ?%| ?×| ?x (?:faster|slower|fewer|less)|x(?!\w))"
    ),
    re.compile(rf"(?:{_NUMBER} )?± {_NUMBER}"),
)
"""What a measured number looks like: 113 (108-122), 15 (14 to > 400), 7 of 8, 0.32 ms, 1.5 to 2.0 times, 89.6 %, 9 ± 1."""
REACHED = re.compile(r"(?:(?:epochs?|steps|seconds|time|trained) to|pass(?:es|ed|ing)?|past|below) \Z", re.IGNORECASE)
"""What stands before a threshold: a definition, and no measurement."""


@cache
def thresholds() -> frozenset[str]:
    """Of the lab's experiments, as pages write them; 1 means that none is to be passed."""
    shares = (catalog.load(name).measure.threshold for name in (*catalog.names(), *catalog.beyond()))
    return frozenset(f"{share:.0%}" for share in shares if share < 1)


def uncovered(page: Path, files: Iterable[Numbers], root: Path) -> list[str]:
    """Numbers of a page that look measured and stand in no rendered line and no exempt text.

    What is in code, comments and link targets is not looked at.
    """
    text = page.read_text(encoding="utf-8")
    normal, seen = normalise(text), _counting(text)
    covered = bytearray(len(normal.text))
    for numbers in files:
        if numbers.page != page:
            continue
        for part in (*_rendered(numbers, root), *(text for text, _ in numbers.exempt)):
            for start, stop in normal.find(normalise(part).text):
                covered[start:stop] = b"\1" * (stop - start)
    starts = [0, *(place.end() for place in re.finditer("\n", text))]
    told: dict[int, str] = {}
    for pattern in MEASURED:
        for match in pattern.finditer(normal.text):
            digits = [place for place in range(*match.span()) if normal.text[place].isdigit()]
            if match[0].replace(" ", "") in thresholds() and REACHED.search(normal.text, 0, match.start()):
                continue
            if all(seen[normal.origin[place]] for place in digits) and not all(covered[place] for place in digits):
                line = bisect_right(starts, normal.origin[match.start()])
                around = normal.text[max(match.start() - 40, 0) : match.end() + 30]
                told.setdefault(normal.origin[match.start()], f"  line {line}: {match[0]!r} in ...{around}...")
    return [told[place] for place in sorted(told)]


def _counting(text: str) -> list[bool]:
    """Of every character of a page whether its numbers count."""
    shown = without_code(text)
    for link in reversed(list(LINK.finditer(shown))):
        shown = shown[: link.start(1)] + " " * len(link[1]) + shown[link.end(1) :]
    return [not letter.isspace() for letter in shown]


def _rendered(numbers: Numbers, root: Path) -> Iterable[str]:
    """The lines that can be; `wrong` tells of the others."""
    for line in numbers.lines:
        try:
            yield render(line, root)
        except QueryError:
            continue
