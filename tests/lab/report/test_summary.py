"""The report on one page: counts by table, reasons, seeds, time; and every table and figure of the paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_records import as_earlier, write_run

from egalitarian.lab.analysis import VerdictRecord, check, gather, judge
from egalitarian.lab.analysis.judging import RecordedVerdict
from egalitarian.lab.config import load_contents
from egalitarian.lab.report import write_report
from egalitarian.lab.report.summary import Overview, cost_lines, overview
from egalitarian.lab.report.write import contents_for
from egalitarian.lab.runs import Store


def test_every_table_and_figure_of_the_paper_is_listed_by_its_number() -> None:
    contents = load_contents()
    assert [table.number for table in contents.tables if table.number] == [f"Table {n}" for n in range(1, 9)]
    assert [figure.number for figure in contents.figures if figure.number] == [f"Figure {n}" for n in range(1, 23)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed in range(8):
        write_run(store, "addition-97", "egd", seed, 110 + seed, ms=2.0, together=4)
        write_run(store, "addition-97", "sgd", seed, 300)
        write_run(store, "parity-4", "row-norm", seed, 60)
    for seed in (0, 1, 2, 3, 8, 9, 10, 11):
        write_run(store, "addition-97", "row-norm", seed, 330)
    return store


@pytest.fixture(scope="module")
def seen(store: Store) -> Overview:
    gathered = gather(store)
    contents = contents_for(gathered)
    return overview(contents, gathered, judge(contents, gathered, VerdictRecord()))


def test_cells_are_counted_by_table_and_all_of_them(seen: Overview, store: Store) -> None:
    records = {record["table"]: record for record in seen.counts.records}
    counted = ("inside", "outside", "undecided", "not run")
    assert [records["Table 2"][key] for key in counted] == [1, 1, 1, 12]
    assert [records["Table 4"][key] for key in counted] == [0, 1, 0, 20]
    assert [records["Table 8"][key] for key in counted] == [0, 0, 0, 24]
    compared = [one for one in check(store).verdicts if one.compared and not one.other_settings]
    assert sum(int(str(records["all of the paper's"][key])) for key in counted) == len(compared) == 98


def test_seeds_are_counted_and_rows_with_too_few_listed(seen: Overview) -> None:
    records = {record["table"]: record for record in seen.counts.records}
    assert (records["Table 2"]["seeds"], records["Table 4"]["seeds"], records["Table 6"]["seeds"]) == ("8", "8", "")
    assert seen.few == ("addition-97 row-norm 4",), "seeds from 8 on are not counted"
    assert "Seeds from 8 on, which verdicts do not read: addition-97 row-norm (4)" in seen.counts.notes


def test_every_cell_outside_has_its_reason(seen: Overview) -> None:
    reasons = {each["cell"]: (each["distance"], each["verdict"], each["why"]) for each in seen.cells.records}
    assert reasons["addition-97, sgd: epochs"] == ("+inf", "outside: 1700 % above the spread [300, 300]", "not known")
    assert reasons["addition-97, row-norm: epochs"] == ("", "too few seeds: 4 of the first 8", "")
    off, verdict, why = reasons["parity-4, row-norm: epochs"]
    assert off == ""
    assert str(verdict).startswith("known: see docs/errata.md#one-run-per-cell")
    assert why == ""
    page = seen.markdown("The paper", "From 16 runs.")
    assert page.startswith("# The paper, on one page\n\nFrom 16 runs.\n")
    assert "[errata: one-run-per-cell](../docs/errata.md#one-run-per-cell)" in page


def test_a_cell_that_contradicts_the_record_is_marked_instead_of_an_old_reason(store: Store) -> None:
    gathered = gather(store)
    contents = contents_for(gathered)
    entry = RecordedVerdict(measure="epochs", verdict="inside", why="of old", cells=("addition-97/sgd",))
    seen = overview(contents, gathered, judge(contents, gathered, VerdictRecord(verdicts=(entry,))))
    reasons = {record["cell"]: record["why"] for record in seen.cells.records}
    assert reasons["addition-97, sgd: epochs"] == "on record it is inside"


def test_time_is_a_runs_share_and_a_tables_while_any_was_at_work(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(2):  # together for 120 s
        write_run(store, "mnist", "egd", seed, epochs=500, ms=40.0, together=4)
    half_as_late = {"when": "2026-01-02T03:05:05+00:00"}
    write_run(store, "mnist", "adamw-decay", 0, epochs=500, ms=40.0, together=4, **half_as_late)
    other = write_run(store, "mnist", "adamw-decay", 1, epochs=500, ms=40.0, together=4, **half_as_late)
    (run, _) = gather(store).of("mnist", "egd")
    assert run.seconds == pytest.approx(500 * 0.040 * 1.5, rel=0.01)
    assert write_report(store, tmp_path / "one", ["mnist"]).cost[0] == "Table 6: 3 min of GPU time for 4 runs"
    (as_earlier(other).folder / "timings.jsonl").unlink()
    report = write_report(store, tmp_path / "out", ["mnist"])
    assert report.cost[0] == "Table 6: 3 min of GPU time for 3 runs, 1 run without stored times"
    assert "Table 6: 1 of 4 runs have no stored times" in (tmp_path / "out" / "SUMMARY.md").read_text()


def test_nothing_run_costs_nothing(tmp_path: Path) -> None:
    gathered = gather(Store(tmp_path))
    contents = contents_for(gathered)
    seen = overview(contents, gathered, judge(contents, gathered))
    assert cost_lines(seen.spent) == []
    assert not seen.cells.records
