"""One page of it all: counts by table, reasons, seeds, and the time it took; and every table and figure of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_records import write_run

from egalitarian.lab.analysis.gather import gather
from egalitarian.lab.analysis.recorded import Entry, Record
from egalitarian.lab.analysis.sittings import Sitting, occupied, sittings_of
from egalitarian.lab.analysis.verdicts import check, judge
from egalitarian.lab.config.contents import load_contents
from egalitarian.lab.report.summary import Overview, overview, said_of_cost
from egalitarian.lab.report.write import contents_for, write_report
from egalitarian.lab.runs.store import Store


def test_every_table_and_figure_of_the_paper_is_listed_by_its_number() -> None:
    contents = load_contents()
    assert [table.number for table in contents.tables if table.number] == [f"Table {n}" for n in range(1, 9)]
    assert [figure.number for figure in contents.figures if figure.number] == [f"Figure {n}" for n in range(1, 23)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed in range(8):
        write_run(store, "addition-97", "egd", seed, 110 + seed, ms=2.0, together=4)
    for seed in range(4):
        write_run(store, "addition-97", "sgd", seed, 300)
        write_run(store, "parity-4", "row-norm", seed, 60)
    return store


@pytest.fixture(scope="module")
def seen(store: Store) -> Overview:
    gathered = gather(store)
    contents = contents_for(gathered)
    return overview(contents, gathered, judge(contents, gathered, Record()))


def test_cells_are_counted_by_table_and_all_of_them(seen: Overview, store: Store) -> None:
    records = {record["table"]: record for record in seen.counts.records}
    counted = ("inside", "outside", "undecided", "not run")
    assert [records["Table 2"][key] for key in counted] == [1, 1, 0, 13]
    assert [records["Table 4"][key] for key in counted] == [0, 1, 0, 20]
    assert [records["Table 8"][key] for key in counted] == [0, 0, 0, 24]
    compared = [one for one in check(store).verdicts if one.compared and not one.aside]
    assert sum(int(str(records["all of the paper's"][key])) for key in counted) == len(compared) == 98


def test_seeds_are_told_and_rows_with_too_few(seen: Overview) -> None:
    records = {record["table"]: record for record in seen.counts.records}
    assert (records["Table 2"]["seeds"], records["Table 4"]["seeds"], records["Table 6"]["seeds"]) == ("4–8", "4", "")
    assert seen.few == ("addition-97 sgd 4", "parity-4 4")


def test_every_cell_outside_has_its_reason(seen: Overview) -> None:
    reasons = {record["cell"]: (record["verdict"], record["why"]) for record in seen.cells.records}
    assert reasons["addition-97, sgd: epochs"] == ("outside: 1700 % above the spread [300, 300]", "not known")
    told, why = reasons["parity-4, row-norm: epochs"]
    assert str(told).startswith("known: see docs/errata.md#one-run-per-cell")
    assert why == ""
    page = seen.markdown("The paper", "From 16 runs.")
    assert page.startswith("# The paper, on one page\n\nFrom 16 runs.\n")
    assert "[errata: one-run-per-cell](../docs/errata.md#one-run-per-cell)" in page


def test_a_cell_that_contradicts_the_record_says_so_instead_of_an_old_reason(store: Store) -> None:
    gathered = gather(store)
    contents = contents_for(gathered)
    entry = Entry(measure="epochs", verdict="inside", why="of old", cells=("addition-97/sgd",))
    seen = overview(contents, gathered, judge(contents, gathered, Record(verdicts=(entry,))))
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
    (other.folder / "timings.jsonl").unlink()
    report = write_report(store, tmp_path / "out", ["mnist"])
    assert report.cost[0] == "Table 6: 3 min of GPU time for 3 runs, 1 run without stored times"
    assert "Table 6: 1 of 4 runs have no stored times" in (tmp_path / "out" / "SUMMARY.md").read_text()


def test_a_run_in_several_sittings_counts_each_from_its_own_start() -> None:
    def at(second: int, epoch: int) -> dict[str, Any]:
        return {"when": f"2026-01-02T03:00:{second:02}+00:00", "device": "cuda", "epoch": epoch}

    def epochs(*numbers: int) -> list[dict[str, Any]]:
        return [{"epoch": number, "training": 0.75, "measuring": 0.25, "seeds": 8} for number in numbers]

    def lengths(*sittings: Sitting) -> list[tuple[float, float]]:
        return [(sitting.begin - sittings[0].begin, sitting.end - sitting.begin) for sitting in sittings]

    assert lengths(*sittings_of([at(0, 0)], epochs(0, 1, 2))) == [(0, 3)]
    again = sittings_of([at(0, 0), at(20, 2)], epochs(0, 1, 2, 3, 2, 3, 4))  # killed at 4, its checkpoint was of 2
    assert lengths(*again) == [(0, 4), (20, 3)]
    assert lengths(*sittings_of([at(0, 0), at(20, 3)], epochs(0, 1, 2, 3))) == [(0, 3), (20, 1)]
    assert lengths(*sittings_of([at(0, 0), at(20, 3), at(30, 3)], epochs(0, 1, 2, 3))) == [(0, 3), (30, 1)]
    assert sittings_of([at(0, 0)], []) == sittings_of([], []) == ()


def test_the_time_of_many_is_that_of_their_union() -> None:
    def seconds(*spans: tuple[float, float], device: str = "cuda") -> float:
        return occupied(Sitting(device, *span) for span in spans).get(device, 0.0)

    assert seconds() == 0
    assert seconds((0, 3), (5, 6)) == 4
    assert seconds((0, 3), (1, 2), (0, 3), (2, 5)) == 5
    assert seconds((4, 6), (0, 9), (8, 10), (20, 21)) == 11
    assert occupied([Sitting("cuda", 0, 3), Sitting("cpu", 1, 2)]) == {"cuda": 3, "cpu": 1}


def test_nothing_run_costs_nothing(tmp_path: Path) -> None:
    gathered = gather(Store(tmp_path))
    contents = contents_for(gathered)
    seen = overview(contents, gathered, judge(contents, gathered))
    assert said_of_cost(seen.spent) == []
    assert not seen.cells.records
