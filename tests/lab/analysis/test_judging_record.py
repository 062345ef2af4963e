"""Verdicts on record: what contradicts them, what does not, and how `egalitarian check` ends."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from report_records import write_run

from egalitarian.lab.analysis import check, load_record, record_to_toml
from egalitarian.lab.analysis.judging import HEAD, Finding, RecordedVerdict, VerdictRecord, anchor
from egalitarian.lab.config import SpecError, catalog, load_contents, read
from egalitarian.lab.console.cli import main
from egalitarian.lab.runs import Store

ERRATA = Path(__file__).parents[3] / "docs" / "errata.md"


def on_record(verdict: Finding, why: str = "") -> VerdictRecord:
    return VerdictRecord(
        verdicts=(RecordedVerdict(measure="epochs", verdict=verdict, why=why, cells=("addition-97/egd",)),)
    )


@pytest.fixture
def inside(tmp_path: Path) -> Store:
    """The paper has 116."""
    store = Store(tmp_path / "runs")
    for seed in range(8):
        write_run(store, "addition-97", "egd", seed, 110 + 2 * seed)
    return store


@pytest.mark.parametrize(("verdict", "well"), [("inside", True), ("outside", False), ("undecided", False)])
def test_runs_with_another_finding_than_the_record_contradict_it(inside: Store, verdict: Finding, well: bool) -> None:
    checked = check(inside, ["addition-97"], on_record(verdict))
    assert [each.method for each in checked.contradictions] == ([] if well else ["egd"])
    assert checked.is_consistent() == well


def test_what_is_known_is_outside_on_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(8):
        write_run(store, "parity-4", "row-norm", seed, 60)
    entry = RecordedVerdict(measure="epochs", verdict="outside", cells=("parity-4/row-norm",))
    (found,) = [one for one in check(store, ["parity-4"], VerdictRecord(verdicts=(entry,))).verdicts if one.kind == "known"]
    assert (found.finding, found.recorded, found.contradicts) == ("outside", "outside", False)


def test_cells_that_are_not_run_or_not_on_record_fail_only_if_strict(inside: Store) -> None:
    for record in (on_record("inside"), VerdictRecord()):
        checked = check(inside, ["addition-97"], record)
        assert checked.is_consistent()
        assert not checked.is_consistent(strict=True)
        assert {each.method for each in checked.open} >= {"sgd", "row-norm"}
    assert "egd" not in {each.method for each in check(inside, ["addition-97"], on_record("inside")).open}


def test_too_few_seeds_contradict_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(7):
        write_run(store, "addition-97", "egd", seed, 50)
    checked = check(store, ["addition-97"], on_record("inside"))
    assert checked.is_consistent()
    assert not checked.is_consistent(strict=True)


def test_the_command_ends_with_1_on_a_contradiction(
    inside: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", "addition-97", "--runs", str(inside.root)]
    assert main(command) == 0, "as it is on record"
    assert main([*command, "--strict"]) == 1, "others are not run"
    monkeypatch.setattr("egalitarian.lab.analysis.verdicts.load_record", lambda: on_record("outside"))
    capsys.readouterr()
    assert main(command) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "contradiction: addition-97/egd (epochs): recorded as outside, now inside the spread" in out


def test_what_is_recorded_is_the_finding_of_the_runs_and_reasons_stay_with_their_verdict(
    inside: Store, tmp_path: Path
) -> None:
    kept = RecordedVerdict(measure="steps", verdict="undecided", why="never run here", cells=("mnist/egd",))
    for verdict, why in (("inside", "so it is"), ("outside", "")):
        record = on_record(verdict, "so it is").replace(verdicts=(*on_record(verdict, "so it is").verdicts, kept))  # type: ignore[arg-type]
        text = record_to_toml(check(inside, ["addition-97"], record).verdicts, record)
        again = read(VerdictRecord, tomllib.loads(text))
        assert set(again.verdicts) == {
            RecordedVerdict(measure="epochs", verdict="inside", why=why, cells=("addition-97/egd",)),
            kept,
        }


def test_the_command_writes_the_record(inside: Store, tmp_path: Path) -> None:
    path = tmp_path / "verdicts.toml"
    assert main(["check", "addition-97", "--runs", str(inside.root), "--record", str(path)]) == 0
    assert read(VerdictRecord, tomllib.loads(path.read_text())) == load_record(), "nothing new is said, and nothing is lost"


def test_a_cell_has_one_verdict() -> None:
    with pytest.raises(SpecError, match=r"verdicts must name a cell once, got addition-97/egd \(epochs\) again"):
        VerdictRecord(verdicts=on_record("inside").verdicts + on_record("outside").verdicts)


def test_everything_on_record_is_a_cell_of_the_paper() -> None:
    gains = {(f"average/{gain.name}", "gain in epochs") for table in load_contents().tables for gain in table.gains}
    fields = {
        "epochs": "epochs",
        "steps": "steps",
        "final accuracy": "final_accuracy",
        "mean accuracy": "mean_train_accuracy",
    }
    claims = {
        (f"{name}/{method}", measure)
        for name in catalog.names()
        for method, claim in catalog.load(name).claims.items()
        for measure, field in fields.items()
        if getattr(claim, field) is not None
    }
    record = load_record()
    assert {(name, entry.measure) for entry in record.verdicts for name in entry.cells} <= claims | gains


def test_reasons_that_name_an_erratum_name_one_that_is_there() -> None:
    anchors = {anchor(line.lstrip("# ")) for line in ERRATA.read_text().splitlines() if line.startswith("#")}
    for entry in load_record().verdicts:
        assert set(re.findall(r"docs/errata\.md#([\w-]+)", entry.why)) <= anchors
        assert entry.why or entry.verdict == "inside" or all(known(name) for name in entry.cells)


def known(name: str) -> bool:
    experiment, _, method = name.partition("/")
    return bool(catalog.load(experiment).claims[method].erratum)


def test_the_file_names_the_command_that_writes_it() -> None:
    assert HEAD.splitlines()[-1].startswith("# Written by `egalitarian check --record FILE`")
