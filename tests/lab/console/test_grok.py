"""`egalitarian grok`: who is trained for how long, what the table says of epochs and the clock, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from matplotlib.figure import Figure
from small import CPU, groks

from egalitarian.lab.analysis.counts import Count
from egalitarian.lab.config import catalog
from egalitarian.lab.config.spec import Experiment, Run
from egalitarian.lab.console import grok
from egalitarian.lab.console import tables as shows
from egalitarian.lab.console.cli import main
from egalitarian.lab.console.grok import Shown
from egalitarian.lab.console.picture import chance, draw_grok, title
from egalitarian.lab.console.tables import Result
from egalitarian.lab.runs.progress import Progress, Silent, Stop
from egalitarian.lab.runs.store import Store

ADDITION = catalog.load("addition-97")
SMALL = ["--set", "task.modulus=7", "--set", "model.width=16", "--set", "training.batch=8"]


def known(name: str, *epochs: int | None, experiment: Experiment = ADDITION, budget: int = 100) -> Shown:
    """A method whose seeds pass at these epochs, or do not within the budget."""
    runs = []
    for seed, crossed in enumerate(epochs):
        trained = budget if crossed is None else crossed + 1
        runs.append(Progress(Run(experiment, name, seed), next_epoch=trained, crossed=crossed, last={}, curve=[0.5]))
    return Shown(name, Stop(0.95, budget, 5), experiment.method(name).epochs, tuple(runs))


def budgets(passes: dict[str, int | None], names: Sequence[str] = (), full: bool = False) -> dict[str, int]:
    """The epochs that each method is given, where EGD and others pass at these epochs."""
    given: dict[str, int] = {}

    def swept(experiment: Experiment, name: str, *_: object, stop: Stop, **__: object) -> tuple[Progress, ...]:
        given[name] = stop.epochs
        return known(name, passes.get(name), experiment=experiment, budget=stop.epochs).runs

    with patch.object(grok, "sweep", swept), patch.object(grok, "rehearse"):
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
    lost.runs[0].next_epoch, lost.runs[0].diverged = 1, True
    assert grok.reference([lost]) == lost.stop.epochs


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
    assert set(grok.order(catalog.load(name), [])) == USUAL[name]


def test_where_all_are_randomized_all_are_shown() -> None:
    experiment = catalog.load("rsvd")
    assert set(grok.order(experiment, [])) == set(experiment.methods)


def test_the_first_to_pass_comes_first_and_who_fails_last() -> None:
    shown = [known("egd", 112, 120), known("sgd", None, 400), known("egd-after", 16, 17)]
    assert [each.name for each in grok.ranked(shown)] == ["egd-after", "egd", "sgd"]


def result(name: str, epochs: int | None, seconds: float) -> Result:
    shown = known(name, epochs)
    count = Count(seconds, "" if epochs is not None else ">")
    return Result(ADDITION.method(name).title, shown, str(epochs), count, 1.0)


def test_it_says_who_is_fastest_on_the_clock_and_who_in_epochs() -> None:
    egd, lr5, sgd = result("egd", 112, 6.1), result("sgd-lr5", 253, 4.6), result("sgd", None, 1.0)
    said = shows.fastest(ADDITION, [egd, lr5, sgd])
    assert said.splitlines() == [
        "Fastest on the clock: [bold]SGD, lr 5[/bold], 4.6 s and 253 epochs.",
        "Fewest epochs: [bold]EGD[/bold], 6.1 s and 112 epochs.",
    ]
    both = shows.fastest(ADDITION, [result("egd-after", 16, 0.9), egd])
    assert both == "Fastest: [bold]EGD, decay after (lr 3)[/bold], on the clock (0.9 s) and in epochs (16)."
    assert shows.fastest(ADDITION, [sgd]) == "No method passed 95%."


def test_a_cut_is_told_with_the_way_out() -> None:
    cut = known("sgd", None, budget=565)
    assert cut.cut_short
    (said,) = [line for line in shows.remarks(ADDITION, [cut]) if "SGD" in line]
    assert "SGD was stopped after 565 of its 14000 epochs" in said
    assert "--full" in said
    assert not known("sgd", 5392, budget=5400).cut_short
    stopped = Shown("sgd", Stop(0.95, 565, 5), 14000, known("sgd", None, budget=100).runs)
    assert not stopped.cut_short, "Ctrl-C is no cut"
    assert any("SGD was interrupted after 100 epochs" in line for line in shows.remarks(ADDITION, [stopped]))


def test_seconds_are_the_training_of_one_seed_through_the_epoch_that_passes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (shown,) = grok.compare(groks("measure.past=3"), ["egd"], [6, 7], store, CPU, Silent())
    for progress in shown.runs:
        assert progress.crossed is not None
        lines = store.find(progress.run).timings
        spent = [line["training"] / line["seeds"] for line in lines if line["epoch"] <= progress.crossed]
        assert shows.timings_of(progress, store) == spent
        assert len(spent) == progress.crossed + 1 < len(lines)


@pytest.mark.parametrize(
    ("seeds", "clock", "passed"), [("pppdd", "7", True), ("ppddd", "never", False), ("ppuud", "> 1", False)]
)
def test_a_seed_that_diverged_needs_more_than_any_time(seeds: str, clock: str, passed: bool) -> None:
    """Its few seconds until then are no bound: p passed after 5, 6, 7 seconds, d diverged at once, u did not pass."""
    shown = known("egd", *(5 + place if seed == "p" else None for place, seed in enumerate(seeds)))
    for run, seed in zip(shown.runs, seeds, strict=True):
        run.diverged = seed == "d"
    timings = [[float(run.crossed)] if run.crossed is not None else [0.5 if run.diverged else 1.0] for run in shown.runs]
    with patch.object(shows, "timings_of", side_effect=timings):
        found = Result.of(ADDITION, shown, Store(Path("nowhere")))
    assert (found.clock, found.passed) == (clock, passed)


def test_a_threshold_has_all_its_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["grok", *SMALL, "--set", "measure.threshold=0.999", "--set", "epochs=2", "--methods", "egd,sgd"]) == 0
    out = capsys.readouterr().out
    assert out.count("99.9%") == 6
    assert "100%" not in out


def test_the_legend_has_every_method(tmp_path: Path) -> None:
    shown = [known(name, None) for name in ADDITION.methods]
    figures: list[Figure] = []
    with patch.object(Figure, "savefig", lambda figure, path: figures.append(figure)):
        draw_grok(Store(tmp_path), ADDITION, shown, tmp_path / "grok.png")
    (figure,) = figures
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().y0 >= 0


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


def test_the_picture_says_what_is_seen() -> None:
    egd, after = known("egd", 112), known("egd-after", 16, 17)
    assert title(ADDITION, [egd]) == "Addition modulo 97: EGD passes 95 % test accuracy at epoch 112"
    first = "EGD, decay after (lr 3) passes 95 % test accuracy first, at epoch 16.5 (median)"
    assert title(ADDITION, [egd, after]) == f"Addition modulo 97: {first}"
    assert title(ADDITION, [known("sgd", None)]) == "Addition modulo 97: no method has passed 95 % test accuracy"


@pytest.mark.parametrize(("name", "share"), [("addition-97", 1 / 97), ("parity-3", 0.5), ("mnist", 0.1)])
def test_chance_is_known(name: str, share: float) -> None:
    assert chance(catalog.load(name)) == share
