"""How the runs of a report were made."""

from __future__ import annotations

from pathlib import Path

from report_records import as_earlier, write_run

from egalitarian.lab.analysis import gather
from egalitarian.lab.report import markdown, write_report
from egalitarian.lab.report.summary import provenance_table
from egalitarian.lab.runs import Store


def test_runs_without_an_environment_are_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        stored = write_run(store, "addition-97", "egd", seed, 10)
        if seed:
            (as_earlier(stored).folder / "environment.jsonl").unlink()
    made = provenance_table(gather(store))
    assert [record["runs"] for record in made.records] == [1]
    assert "Of 2 more it is not stored how they were made" in made.notes


def test_the_commit_of_a_changed_checkout_is_in_the_csv_only(tmp_path: Path) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    for seed, commit in enumerate(["aaaaaaaaaaaa+", "bbbbbbbbbbbb+", "cccccccccccc"]):
        write_run(store, "addition-97", "egd", seed, 20, commit=commit)
    write_report(store, out, ["addition-97"])
    text = markdown(provenance_table(gather(store)))
    assert "aaaaaaaaaaaa" not in text
    assert "| 0123456789abcdef | – | NVIDIA H200 | cuda | 2.13.0 | fast | 2 | 0, 1 |" in text
    assert "| 0123456789abcdef | cccccccccccc | NVIDIA H200 | cuda | 2.13.0 | fast | 1 | 2 |" in text
    assert "summary.csv names the commit with a +" in text
    assert "0123456789abcdef,aaaaaaaaaaaa+," in (out / "summary.csv").read_text()
