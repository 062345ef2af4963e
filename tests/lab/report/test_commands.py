"""The commands that make a report and its parts again."""

from __future__ import annotations

import shlex

import pytest

from egalitarian.lab.config import TablePlan
from egalitarian.lab.report.commands import Commands


def test_experiments_are_named_as_the_user_did_and_quoted_for_a_shell() -> None:
    commands = Commands({"mine": "my files/mine.toml", "addition-97": "addition-97"}, html=True)
    assert commands.report == "egalitarian report 'my files/mine.toml' addition-97 --html"
    trains = commands.train(["mine"], ["egd", "sgd"])
    assert shlex.split(trains) == ["egalitarian", "run", "my files/mine.toml", "-m", "egd,sgd"]
    assert commands.figure(["mine"], ["egd"]).splitlines() == [commands.train(["mine"], ["egd"]), commands.report]


def test_without_names_everything_is_trained() -> None:
    commands = Commands({}, html=False)
    assert (commands.report, commands.train(())) == ("egalitarian report", "egalitarian run --all")
    assert Commands({"mine": "mine.toml"}, html=False).train(()) == "egalitarian run mine.toml"


@pytest.mark.parametrize(("kind", "trains"), [("settings", False), ("methods", False), ("epochs", True), ("gains", True)])
def test_a_table_of_settings_needs_no_runs(kind: str, trains: bool) -> None:
    plan = TablePlan(kind=kind, name="t", title="T", experiments=("parity-2",))  # type: ignore[arg-type]
    assert ("egalitarian run parity-2" in Commands({}, html=True).table(plan)) == trains
