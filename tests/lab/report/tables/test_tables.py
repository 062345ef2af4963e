"""Tables with numbers that are known beforehand."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from report_records import write_gains, write_run

from egalitarian.lab.analysis import Gathered, check, gather
from egalitarian.lab.config import Contents, Method, MomentumSettings, Optim, PolarSettings
from egalitarian.lab.report import Table, markdown, to_csv
from egalitarian.lab.report.render import latex
from egalitarian.lab.report.tables import build_table
from egalitarian.lab.report.tables.overview import _method_settings
from egalitarian.lab.report.write import contents_for
from egalitarian.lab.runs import Store


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    return gather(write_gains(Store(tmp_path_factory.mktemp("runs"))))


@pytest.fixture(scope="module")
def contents(gathered: Gathered) -> Contents:
    return contents_for(gathered)


def table(contents: Contents, gathered: Gathered, name: str) -> Table:
    return build_table(next(plan for plan in contents.tables if plan.name == name), contents, gathered)


def row(found: Table, block: str, title: str) -> tuple[str, ...]:
    (rows,) = [each.rows for each in found.blocks if each.heading == block]
    return next(cells for cells in rows if cells[0] == title)


def test_a_cell_has_paper_median_spread_passed_and_gain(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "table-2-addition")
    assert row(found, "Addition modulo 97", "SGD")[:5] == ("SGD", "5392", "200 (100–300)", "3/3", "–")
    assert row(found, "Addition modulo 97", "EGD")[:5] == ("EGD", "116", "20 (10 to > 1000)", "2/3", "46.5× / 10.0×")


def test_an_experiment_beyond_the_paper_has_no_column_of_the_papers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "order", "egd-after", 0, 4, ms=5.0)
    gathered = gather(store)
    found = table(contents_for(gathered), gathered, "order")
    assert found.columns == ("method", "epochs: median (min–max)", "passed", "ms per epoch", "s to 95 %")
    (block,) = found.blocks
    assert block.rows[0][1:3] == ("4", "1/1")
    assert not [note for note in found.notes if "paper" in note or "Gains" in note]


def test_times_carry_the_platform_they_are_from(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "table-2-addition")
    *_, ms, seconds = row(found, "Addition modulo 97", "EGD")
    letter = ms[-1]
    assert re.fullmatch(rf"94\.4 / (4\.\d+|5\.?\d*) {letter}", ms)
    assert seconds.startswith("10.9 / 0.10")
    assert f"Our times, {letter}: NVIDIA H200, 4 seeds side by side" in found.notes
    *_, other, _ = row(found, "Addition modulo 97: not in the paper, ours", "EGD, decay after (lr 3)")
    assert other[-1] != letter


def test_ours_are_a_block_of_their_own_and_what_is_not_run_is_noted(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "table-2-addition")
    assert [block.heading for block in found.blocks] == [
        "Addition modulo 79",
        "Addition modulo 97",
        "Addition modulo 97: not in the paper, ours",
        "Addition modulo 127",
    ]
    ours = row(found, "Addition modulo 97: not in the paper, ours", "EGD, decay after (lr 3)")
    assert ours[1:5] == ("–", "4", "1/1", "– / 50.0×")
    assert row(found, "Addition modulo 79", "row norm")[2:5] == ("not run", "–", "11.7× / –")
    assert row(found, "Addition modulo 97", "row norm")[2:5] == ("> 5, unfinished", "0/1", "16.4× / –")
    assert any(note.startswith("Ours that are not run on Addition modulo 97: SGD, lr 5;") for note in found.notes)


def test_the_same_as_plain_numbers(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "table-2-addition")
    records = list(csv.DictReader(io.StringIO(to_csv(found.records))))
    egd = next(record for record in records if (record["experiment"], record["method"]) == ("addition-97", "egd"))
    expected = {"paper_epochs": "116", "median": "20", "min": "10", "max": ">1000", "n": "3", "passed": "2", "gain": "10"}
    assert {key: egd[key] for key in expected} == expected
    assert {record["ours"] for record in records if record["method"] == "egd-after"} == {"yes"}


def test_times_are_compared_only_on_the_same_platform(contents: Contents, gathered: Gathered) -> None:
    records = {(r["experiment"], r["method"]): r for r in table(contents, gathered, "table-2-addition").records}
    assert float(str(records["addition-97", "egd"]["gain_seconds"])) == pytest.approx(201 / 21 / 5, rel=0.05)
    assert records["addition-97", "egd-after"]["gain_seconds"] is None


def test_a_gain_in_time_names_its_tasks_where_they_are_not_all_that_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name, place in (("addition-79", "another"), ("addition-97", "NVIDIA H200")):
        write_run(store, name, "sgd", 0, 100, ms=1.0)
        write_run(store, name, "egd", 0, 10, ms=5.0, hardware=place)
        write_run(store, name, "row-norm", 0, 20, ms=1.0)
    found = gather(store)
    made = table(contents_for(found), found, "table-5-average-gain")
    assert re.fullmatch(r"1\.\d× \(addition-97\)", row(made, "", "EGD")[-1])
    assert re.fullmatch(r"4\.\d×", row(made, "", "row norm")[-1]), "of both, as the epochs are"
    assert {record["gain"]: record["timed"] for record in made.records}["egd"] == "addition-97"
    seconds = [verdict for verdict in check(store).verdicts if verdict.measure == "gain in seconds"]
    assert next(one.verdict for one in seconds if one.method == "egd").endswith("ours of addition-97")


def test_the_settings_are_those_of_the_specs(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "table-1-settings")
    parity = row(found, "in the paper's table", "Sparse parity, 2 secret of 400 bits")
    assert parity[1:] == ("400", "–", "2000", "50", "squared-error", "0.01", "0.001", "32")
    assert row(found, "in the paper's table", "Addition modulo 97")[1:4] == ("–", "0.5", "4704")
    assert row(found, "not in the paper's table", "MNIST, 1000 images")[3:5] == ("1000", "200")


def test_settings_that_differ_from_the_papers_are_marked_and_no_others(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "table-1-settings")
    marked = {cells[0]: [cell for cell in cells if "≠" in cell] for block in found.blocks for cells in block.rows}
    assert {task: cells for task, cells in marked.items() if cells} == {
        "Sparse parity, 3 secret of 100 bits": ["0.0416239 ≠ 0.042"],
        "Sparse parity, 4 secret of 50 bits": ["0.0230841 ≠ 0.023"],
    }
    assert r"0.0416239 $\neq$ 0.042" in latex(found)


def test_methods_that_share_settings_share_a_row(contents: Contents, gathered: Gathered) -> None:
    found = table(contents, gathered, "methods")
    assert row(found, "in the paper", "sgd")[1:4] == ("addition, multiplication, parity", "the task's", "the task's")
    assert row(found, "in the paper", "grokfast-ema")[1] == "mnist"
    assert row(found, "not in the paper, ours", "grokfast-ema")[1] == "addition, multiplication, parity"
    assert row(found, "not in the paper, ours", "sgd-lr5")[1:4] == ("addition, multiplication", "5", "0.001")
    assert row(found, "not in the paper, ours", "egd-after")[3] == "the task's; 0.03"


def test_settings_of_a_method_say_what_is_clipped_and_whose_gradients_are_filtered() -> None:
    chain = (MomentumSettings(beta=0.9, on="targets"), PolarSettings())
    method = Method(title="", epochs=1, optim=Optim(), transform=chain, clip=2.0)
    assert _method_settings(method, Optim())[3] == "momentum on targets beta 0.9, then polar, then rows clipped to 2"


def test_every_table_renders_with_as_many_cells_as_columns(contents: Contents, gathered: Gathered) -> None:
    for plan in contents.tables:
        found = build_table(plan, contents, gathered)
        lines = [line for line in markdown(found).splitlines() if line.startswith("|")]
        assert {line.replace("\\|", "").count("|") for line in lines} == {len(found.columns) + 1}
        body = latex(found).split("\\toprule")[1].split("\\bottomrule")[0]
        body = re.sub(r"\\shortstack\[r\]\{[^}]*\}", "heading", body)
        rows = [line for line in body.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
        assert {line.replace("\\&", "").count("&") for line in rows} == {len(found.columns) - 1}
        assert not re.search(r"[^\x00-\x7f]", latex(found))
