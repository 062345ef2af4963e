"""`egalitarian grok`: budgets, order, and what the table says of epochs and of the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch
from compared import ADDITION, SMALL, known
from small import CPU, groks

from egalitarian.lab.analysis import Count, MethodSummary, epochs_to_threshold
from egalitarian.lab.config import Experiment, load
from egalitarian.lab.console import grok, main
from egalitarian.lab.console.grok import Compared, MethodRuns, fastest, remarks
from egalitarian.lab.runs import Progress, Silent, Stop, Store, training_seconds


def budgets(passes: dict[str, int | None], names: Sequence[str] = (), full: bool = False) -> dict[str, int]:
    """The epochs that each method is given, where EGD and others pass at these epochs."""
    given: dict[str, int] = {}

    def swept(experiment: Experiment, name: str, *_: object, stop: Stop, **__: object) -> tuple[Progress, ...]:
        given[name] = stop.epochs
        return known(name, passes.get(name), experiment=experiment, budget=stop.epochs).runs

    with patch.object(grok, "sweep", swept), patch.object(grok, "try_step"):
        list(grok.compare(ADDITION, names, [0], Store(Path("nowhere")), torch.device("cpu"), Silent(), full))
    return given


def test_sgd_at_lr_5_may_jump_late_and_the_papers_sgd_is_cut() -> None:
    given = budgets({"egd": 112})
    assert given["sgd"] == 5 * 113
    assert given["sgd-lr5"] == ADDITION.method("sgd-lr5").epochs == 2000
    assert given["egd"] == ADDITION.method("egd").epochs


def test_full_cuts_nobody() -> None:
    assert budgets({"egd": 112}, full=True)["sgd"] == ADDITION.method("sgd").epochs


def test_where_egd_fails_others_get_what_it_had() -> None:
    assert budgets({"egd": None}, ["egd", "sgd"])["sgd"] == ADDITION.method("egd").epochs


def test_where_egd_diverges_others_get_what_it_was_given() -> None:
    lost = known("egd", None)
    lost.runs[0].outcome = replace(lost.runs[0].outcome, epochs=1, diverged=True)
    assert grok.epoch_limit([lost]) == lost.stop.epochs


def test_only_methods_that_equalise_set_a_limit() -> None:
    assert budgets({"adamw": 10}, ["adamw", "sgd"])["sgd"] == ADDITION.method("sgd").epochs


USUAL = {
    "addition-97": {"sgd", "egd", "row-norm", "sgd-lr5", "egd-after"},
    "parity-3": {"sgd", "egd", "row-norm", "egd-after"},
    "mnist": {"adamw", "grokfast-ema", "egd", "adamw-decay"},
    "cifar-shuffle-1": {"adam", "adam-egd", "radam", "radam-egd", "rmsprop", "rmsprop-egd"},
}


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_methods_are_shown_without_the_randomized(name: str) -> None:
    assert set(grok.order(load(name), [])) == USUAL[name]


def test_where_all_are_randomized_all_are_shown() -> None:
    experiment = load("rsvd")
    assert set(grok.order(experiment, [])) == set(experiment.methods)


def test_the_first_to_pass_comes_first_and_who_fails_last() -> None:
    shown = [known("egd", 112, 120), known("sgd", None, 400), known("egd-after", 16, 17)]
    assert [each.name for each in grok.ranked(shown)] == ["egd-after", "egd", "sgd"]


def result(name: str, epochs: int | None, seconds: float) -> Compared:
    method = known(name, epochs)
    count = Count(seconds, "" if epochs is not None else ">")
    summary = MethodSummary(epochs_to_threshold([run.outcome for run in method.runs], 100), count, 1.0)
    return Compared(ADDITION.method(name).title, method, summary)


def test_it_says_who_is_fastest_on_the_clock_and_who_in_epochs() -> None:
    egd, lr5, sgd = result("egd", 112, 6.1), result("sgd-lr5", 253, 4.6), result("sgd", None, 1.0)
    said = fastest(ADDITION, [egd, lr5, sgd])
    assert said.splitlines() == [
        "Fastest on the clock: [bold]SGD, lr 5[/bold], 4.6 s and 253 epochs.",
        "Fewest epochs: [bold]EGD[/bold], 6.1 s and 112 epochs.",
    ]
    both = fastest(ADDITION, [result("egd-after", 16, 0.9), egd])
    assert both == "Fastest: [bold]EGD, decay after (lr 3)[/bold], on the clock (0.9 s) and in epochs (16)."
    assert fastest(ADDITION, [sgd]) == "No method passed 95%."


def test_a_cut_is_told_with_the_way_out() -> None:
    cut = known("sgd", None, budget=565)
    assert cut.cut_short
    (said,) = [line for line in remarks(ADDITION, [cut]) if "SGD" in line]
    assert "SGD was stopped after 565 of its 14000 epochs" in said
    assert "--full" in said
    assert not known("sgd", 5392, budget=5400).cut_short
    stopped = MethodRuns("sgd", Stop(0.95, 565, 5), 14000, known("sgd", None, budget=100).runs)
    assert not stopped.cut_short, "Ctrl-C is no cut"
    assert any("SGD was interrupted after 100 epochs" in line for line in remarks(ADDITION, [stopped]))


def test_seconds_are_the_training_of_one_seed_through_the_epoch_that_passes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (shown,) = grok.compare(groks("measure.past=3"), ["egd"], [6, 7], store, CPU, Silent())
    for progress in shown.runs:
        assert progress.crossed is not None
        lines = store.find(progress.run).timings
        spent = [line["training"] / line["seeds"] for line in lines if line["epoch"] <= progress.crossed]
        assert training_seconds(lines, progress.outcome) == spent
        assert len(spent) == progress.crossed + 1 < len(lines)


@pytest.mark.parametrize(
    ("seeds", "clock", "passed"), [("pppdd", "7", True), ("ppddd", "never", False), ("ppuud", "> 1", False)]
)
def test_a_seed_that_diverged_needs_more_than_any_time(seeds: str, clock: str, passed: bool) -> None:
    """Its few seconds until then are no bound: p passed after 5, 6, 7 seconds, d diverged at once, u did not pass."""
    method = known("egd", *(5 + index if seed == "p" else None for index, seed in enumerate(seeds)))
    for run, seed in zip(method.runs, seeds, strict=True):
        run.outcome = replace(run.outcome, diverged=seed == "d")
    spent = {run.run.seed: run.crossed or (0.5 if run.diverged else 1.0) for run in method.runs}
    store = Mock(find=lambda run: Mock(timings=[{"epoch": 0, "training": float(spent[run.seed]), "seeds": 1}]))
    found = Compared.of(ADDITION, method, store)
    assert (found.clock, found.passed) == (clock, passed)


def test_a_threshold_has_all_its_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["grok", *SMALL, "--set", "measure.threshold=0.999", "--set", "epochs=2", "--methods", "egd,sgd"]) == 0
    out = capsys.readouterr().out
    assert out.count("99.9%") == 6
    assert "100%" not in out


def test_the_table_has_epochs_and_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    easy = [*SMALL, "--set", "task.train_fraction=0.9", "--set", "measure.threshold=0.01", "--methods", "egd,sgd"]
    assert main(["grok", *easy]) == 0
    out = capsys.readouterr().out
    head, below = (line.split() for line in out.splitlines() if line.split()[:1] in (["epochs"], ["method"]))
    assert head == ["epochs", "seconds", "best", "ms", "per"]  # none of the paper's, which are of other settings
    assert below == ["method", "to", "1%", "to", "1%", "test", "epoch"]
    assert "Fastest" in out
    assert "seconds: training one seed through that epoch" in out
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_threshold_there_is_nothing_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["grok", *SMALL, "--set", "measure.threshold=1.0", "--set", "epochs=2", "--methods", "egd,sgd"]) == 0
    out = capsys.readouterr().out
    assert "training for a fixed budget" in out
    assert "seconds" not in out
    assert "pass" not in out
