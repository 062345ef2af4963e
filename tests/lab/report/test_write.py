"""The whole report: every file, the same bytes each time, and nothing lost to one bad run or figure."""

from __future__ import annotations

import ast
import csv
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_records import write_run

import egalitarian.lab.report
from egalitarian.lab.analysis import gather
from egalitarian.lab.console.cli import main
from egalitarian.lab.report import ReportError, write_report
from egalitarian.lab.report import write as write_module
from egalitarian.lab.report.figures import FIGURES, Drawing
from egalitarian.lab.report.render import latex
from egalitarian.lab.report.tables import build_table
from egalitarian.lab.report.write import LIST_HEADER, contents_for
from egalitarian.lab.runs import Store, StoreError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed in range(3):
        write_run(store, "addition-97", "sgd", seed, 200 + seed)
    for seed in range(8):
        write_run(store, "addition-97", "egd", seed, 108 + 2 * seed)
    write_run(store, "addition-97", "egd", 0, 8, changes=["optim.lr=2.0"])
    return store


@pytest.fixture(scope="module")
def out(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "results"
    report = write_report(store, out, ["addition-97"])
    assert report.complete
    assert (report.runs, report.variants) == (11, 1)
    assert set(report.paths) == {path for path in out.rglob("*") if path.is_file()}
    return out


def test_all_files_are_there_and_small(out: Path) -> None:
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"index.html", "README.md", "SUMMARY.md", "summary.csv", "summary.json", "verdicts.csv"} < names
    for ending in ("md", "csv", "tex"):
        assert f"tables/table-2-addition.{ending}" in names
    for ending in ("png", "svg"):
        assert {f"figures/figure-1-addition.{ending}", f"figures/figure-4-spectra.{ending}"} < names
        assert f"figures/figure-3-parity.{ending}" not in names
    assert "tables/table-5-average-gain.md" not in names, "an average over one task is none"
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 2_000_000


def test_the_same_store_gives_the_same_bytes(store: Store, out: Path, tmp_path: Path) -> None:
    again = write_report(store, tmp_path, ["addition-97"])
    for path in again.paths:
        assert path.read_bytes() == (out / path.relative_to(tmp_path)).read_bytes(), path.name


def test_every_run_has_its_line(out: Path) -> None:
    with (out / "summary.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert [line["counts"] for line in lines].count("no") == 1
    first = next(line for line in lines if line["method"] == "egd" and line["seed"] == "1")
    assert (first["crossed"], first["state"], first["hardware"]) == ("110", "passed", "NVIDIA H200")


def test_the_summary_has_the_estimates(out: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    egd = summary["experiments"]["addition-97"]["egd"]
    assert (egd["median"], egd["min"], egd["max"], egd["n"], egd["passed"]) == ("115", "108", "122", 8, 8)
    assert summary["verdicts"] == {"inside": 1, "not run": 3, "too few seeds": 1}


def test_the_readme_shows_tables_figures_verdicts_variants_and_how_the_runs_were_made(out: Path) -> None:
    text = (out / "README.md").read_text()
    assert "| EGD | 116 | 115 (108–122) | 8/8 | 46.5× / 1.7× |" in text
    assert "![Figure 1. Modular addition](figures/figure-1-addition.png)" in text
    assert "| addition-97 | egd | epochs | 116 | 115 | 108–122 | 8/8 | +0.1 | inside the spread |" in text
    assert "optim.lr = 2.0 (catalogue: 0.7)" in text
    assert "| 0123456789abcdef | 0123456789ab | NVIDIA H200 | cuda | 2.13.0 |" in text
    assert "The runs themselves are not part of this report. `egalitarian pack` puts what it reads of them into" in text
    assert "toy" not in text
    assert "2026-01-02" in text
    assert "\n\n\n" not in text


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    VOID = ("meta", "br", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.shown: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shown += [value or "" for key, value in attrs if key == "src"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_links_the_files_next_to_it(out: Path) -> None:
    text = (out / "index.html").read_text()
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert sorted(balance.shown) == sorted(f"figures/{path.name}" for path in (out / "figures").glob("*.svg"))
    assert len(text) < 100_000
    assert "<script" not in text
    assert "{{" not in text
    assert "prefers-color-scheme: dark" in text


def test_a_bad_run_and_a_bad_figure_lose_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "runs")
    bad = write_run(store, "addition-97", "egd", 0, 20)
    write_run(store, "addition-97", "egd", 1, 20)
    (bad.folder / "records.jsonl").write_text("edited <by> hand")

    def broken(*_: object) -> None:
        raise ValueError("no <ink>")

    monkeypatch.setitem(FIGURES, "spectra", Drawing(broken, ""))
    monkeypatch.setitem(FIGURES, "trajectories", Drawing(broken, ""))
    monkeypatch.setitem(FIGURES, "distances", Drawing(broken, ""))
    report = write_report(store, tmp_path / "out", ["addition-97"])
    assert not report.complete
    assert report.runs == 1
    assert len(report.warnings) == 1
    assert report.errors[0] == "figure-4-spectra could not be made: ValueError: no <ink>"
    assert (tmp_path / "out" / "figures" / "figure-1-addition.svg").exists()
    page = (tmp_path / "out" / "index.html").read_text()
    assert "no &lt;ink&gt;" in page
    assert "must hold the" in (tmp_path / "out" / "README.md").read_text()
    assert not list((tmp_path / "out").rglob("*.draft")) + list((tmp_path / "out").glob(".figure-*"))


def test_a_users_experiment_gets_a_table_and_figures_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "addition-97"\ntitle = "Mine_1 & co"\n[task]\nmodulus = 31\n')
    store = Store(tmp_path / "runs")
    write_run(store, str(path), "egd", 0, 20)
    gathered = gather(store, [str(path)])
    contents = contents_for(gathered)
    assert [plan.name for plan in contents.tables] == ["mine"]
    write_report(store, tmp_path / "out", [str(path)])
    assert (tmp_path / "out" / "README.md").read_text().startswith("# Mine_1 & co\n")
    assert "<h1>Mine_1 &amp; co</h1>" in (tmp_path / "out" / "index.html").read_text()
    assert [plan.kind for plan in contents.figures] == ["costs", "curves", "spectra", "distances", "trajectories"]
    assert r"Mine\_1 \& co" in latex(build_table(contents.tables[0], contents, gathered))
    for plan in contents.figures:
        assert FIGURES[plan.kind].draw(gathered, gathered.experiments, plan.methods).axes


def test_an_experiment_that_asks_for_fourier_measures_has_their_figure(tmp_path: Path) -> None:
    write_run(store := Store(tmp_path / "runs"), "addition-97-fourier", "egd", 0, 20)
    kinds = [plan.kind for plan in contents_for(gather(store)).figures if plan.experiments == ("addition-97-fourier",)]
    assert kinds == ["costs", "curves", "spectra", "fourier", "distances", "trajectories"]


def test_the_default_folder_is_not_that_of_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    assert main(["report", "addition-97", "--runs", "nothing"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nothing", "report"]
    assert main(["report", "--runs", "nothing", "--out", "."]) == 2  # a README.md of its own would go


def test_a_figure_of_which_nothing_is_stored_is_a_line_with_the_command_that_trains_it(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    write_run(store, "addition-97", "egd", 0, 20)
    write_report(store, out)
    assert (out / "figures" / "figure-1-addition.png").exists()
    assert not list((out / "figures").glob("figure-3-*"))
    for page in ("README.md", "index.html"):
        assert (
            "Nothing of it is stored: `egalitarian run parity-2 parity-3 parity-4` trains it." in (out / page).read_text()
        )


def test_what_an_earlier_report_wrote_goes_and_nothing_else(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    for experiment in ("parity-2", "addition-97"):
        write_run(store, experiment, "egd", 0, 20)
    earlier = write_report(store, out, ["parity-2"])
    assert (out / "figures" / "figure-3-parity.png").exists()
    (out / "figures" / "mine.png").write_text("mine")
    (out / "notes.md").write_text("mine")
    (tmp_path / "precious").write_text("mine")
    with (out / "files.txt").open("a") as file:
        file.write(f"../precious\n{tmp_path}/precious\nfigures\nno-such-file\n")
    report = write_report(store, out, ["addition-97"])
    assert not (out / "figures" / "figure-3-parity.png").exists()
    assert not (out / "tables" / "table-4-parity.tex").exists()
    assert set(report.removed) == set(earlier.paths) - set(report.paths)
    left = {path for path in out.rglob("*") if path.is_file()}
    assert left == {*report.paths, out / "figures" / "mine.png", out / "notes.md"}
    assert (tmp_path / "precious").exists()
    signed, *listed = (out / "files.txt").read_text().splitlines()
    assert signed == LIST_HEADER
    assert {out / name for name in listed} | {out / "files.txt"} == set(report.paths)


@pytest.mark.parametrize("at", ["figures/figure-1-addition.svg", "files.txt", "index.html", "README.md", "SUMMARY.md"])
def test_a_report_that_was_killed_is_written_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    write_run(store, "addition-97", "egd", 0, 20)
    write = write_module.write_atomically

    def killed(path: Path, content: str | bytes) -> None:
        write(path, content)
        if path == out / at:
            shutil.copytree(next(out.glob(".figure-*"), out / "tables"), out / ".figure-left-behind")
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(write_module, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            write_report(store, out, ["addition-97"])
    report = write_report(store, out, ["addition-97"])
    assert set(report.paths) == {path for path in out.rglob("*") if path.is_file()}
    assert not any(out.glob(".*"))


@pytest.mark.parametrize("listed", [None, "notes.md\n", "", "\xff"])
def test_a_folder_of_another_program_is_left_as_it_is(tmp_path: Path, listed: str | None) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    out.mkdir()
    for name in ("README.md", "notes.md"):
        (out / name).write_text("mine")
    if listed is not None:
        (out / "files.txt").write_bytes(listed.encode("latin-1"))
    with pytest.raises(ReportError, match=r"got .* with a README\.md that none did; .* --replace"):
        write_report(store, out, ["addition-97"])
    assert (out / "README.md").read_text() == "mine"
    assert not write_report(store, out, ["addition-97"], replace=True).removed
    assert (out / "notes.md").read_text() == "mine"
    write_report(store, out, ["addition-97"])  # a report's own by now


def test_figures_of_the_toy_problem_are_shown_if_they_are_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "results" / "toy").mkdir(parents=True)
    for ending in ("svg", "png"):
        (tmp_path / "results" / "toy" / f"toy-curves.{ending}").write_text("drawn before")
    report = write_report(Store(tmp_path / "runs"), tmp_path / "results")
    text = (tmp_path / "results" / "README.md").read_text()
    assert "### Figure 6. The toy problem: gradient descent and EGD, simulation and theory" in text
    assert "](toy/toy-curves.png)" in text
    assert "### Figure 22." in text
    assert "Not drawn yet: `egalitarian toy --out results/toy` does." in text
    assert not any("toy" in path.name for path in report.paths), "another command's files"
    assert report.complete


def test_the_toy_problem_is_linked_if_its_report_is_in_the_folder(store: Store, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    write_report(store, tmp_path, ["parity-2"])
    assert "[toy](toy)" in (tmp_path / "README.md").read_text()
    assert '<a href="toy/">toy</a>' in (tmp_path / "index.html").read_text()


def test_runs_that_are_not_begun_are_a_remark(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    stored = write_run(store, "addition-97", "egd", 0, epochs=0)
    report = write_report(store, out, ["addition-97"])
    assert (report.runs, report.complete) == (0, True)
    for page in ("README.md", "index.html"):
        assert f"counted nowhere: addition-97/egd/{stored.folder.name}." in (out / page).read_text()
    assert stored.folder.name not in (out / "summary.csv").read_text()


def test_out_must_be_a_folder(store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ReportError, match="out must be a folder, got the file"):
        write_report(store, tmp_path / "out", ["addition-97"])


def test_out_must_be_writable(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"out must be writable, got: Not a directory; .* another folder with --out"):
        write_report(store, tmp_path / "file" / "out", ["addition-97"])


def test_the_report_never_trains() -> None:
    forbidden = {"train", "sweep", "methods", "ensemble"}
    mine = Path(egalitarian.lab.report.__file__).parent
    for file in mine.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not {f"egalitarian.lab.{room}" for room in forbidden} & whole, file.name


def test_a_report_of_fewer_runs_does_not_replace_one_of_more(tmp_path: Path) -> None:
    many, few = Store(tmp_path / "many"), Store(tmp_path / "few")
    for seed in range(3):
        write_run(many, "addition-97", "egd", seed, 30)
    write_run(few, "addition-97", "egd", 0, 30)
    write_report(many, tmp_path / "out", ["addition-97"])
    before = (tmp_path / "out" / "summary.csv").read_bytes()
    with pytest.raises(ReportError, match="must not hold a report of more runs, got one of 3 and 1 stored now"):
        write_report(few, tmp_path / "out", ["addition-97"])
    assert (tmp_path / "out" / "summary.csv").read_bytes() == before
    assert write_report(few, tmp_path / "out", ["addition-97"], replace=True).runs == 1
