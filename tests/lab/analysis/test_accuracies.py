"""Tables 6 to 8: steps from epochs, accuracies at the end of full-length runs, means over epochs, and verdicts on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from report_records import write_run

from egalitarian.lab.analysis.accuracies import Accuracy, final_accuracy, mean_train_accuracy
from egalitarian.lab.analysis.gather import Gathered, Summary, gather
from egalitarian.lab.analysis.judging import judge_final, judge_mean, judge_reached
from egalitarian.lab.analysis.statistics import estimate
from egalitarian.lab.analysis.verdicts import Verdict, check
from egalitarian.lab.config import catalog
from egalitarian.lab.report.render import Table
from egalitarian.lab.report.tables.epochs import build
from egalitarian.lab.report.write import contents_for, write_report
from egalitarian.lab.runs.store import Store
from egalitarian.lab.training.ensemble import Ensemble


@pytest.mark.parametrize(
    ("batch", "drop_last", "passes", "steps"),
    [(32, True, 1, 62), (32, False, 1, 63), (2000, False, 1, 1), (1000, True, 5, 10), (32, False, 3, 189)],
)
def test_an_epochs_steps_are_those_that_are_trained(batch: int, drop_last: bool, passes: int, steps: int) -> None:
    changes = [f"training.batch={batch}", f"training.drop_last={str(drop_last).lower()}", f"training.passes={passes}"]
    experiment = catalog.load("parity-2", changes)
    assert experiment.steps_per_epoch == steps
    ensemble = Ensemble(experiment, [0], torch.device("cpu"))
    assert len(ensemble.choices(0)) == ensemble.steps == steps


def test_the_papers_experiments_count_steps_as_their_sources_do() -> None:
    steps = {name: catalog.load(name).steps_per_epoch for name in catalog.names()}
    assert all(steps.values())
    assert (steps["mnist"], steps["transformer"], steps["cifar-shuffle-1"], steps["addition-97"]) == (100, 10, 40, 9)


def test_steps_go_through_the_epoch_that_passes_and_a_bound_has_no_more_than_were_trained() -> None:
    seeds = [a_seed(crossed, 1000) for crossed in (6, 0, None)]
    found = estimate(seeds, 100)
    assert (str(found.median), str(found.low), str(found.high)) == ("700", "100", "> 100000")
    assert judge_reached(700, found, "steps") == ("inside", "inside the spread")
    assert judge_reached(50, found, "steps") == ("outside", "outside: 50 % below the spread [100, > 100000]")
    kind, words = judge_reached(43100, found, "steps")
    assert kind == "undecided"
    assert words.endswith("(at most 700), and 1 of 3 did not pass within 100000 steps")


def a_seed(crossed: int | None, bound: int) -> Summary:
    state = "not passed" if crossed is None else "passed"
    return Summary("mnist", "egd", 0, "id", state, crossed, bound, bound, None, None, None, None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """MNIST with one full-length run of EGD; shuffled labels with training accuracies 0.2, 0.3 and 0.4 on average."""
    store = Store(tmp_path_factory.mktemp("runs"))
    for seed in range(3):
        write_run(store, "mnist", "adamw-decay", seed, 17)
        write_run(
            store, "mnist", "egd", seed, 6 + seed, epochs=1000 if seed == 0 else None, polar=("exact", "fast")[seed % 2]
        )
        write_run(store, "mnist", "egd-rsvd-16", seed, epochs=30, diverged=seed == 2)
        learnt = 0.2 + 0.1 * seed
        write_run(store, "cifar-shuffle-3", "adam", seed, learnt=lambda epoch, mean=learnt: mean + 0.1 * (-1) ** epoch)
        write_run(store, "cifar-shuffle-3", "adam-egd", seed, learnt=lambda epoch: 0.6)
        write_run(
            store, "cifar-shuffle-3", "radam", seed, learnt=lambda epoch: 0.229, epochs=40 if seed == 1 else None,
            diverged=seed == 1,
        )  # fmt: skip
    write_run(store, "cifar-shuffle-3", "radam-egd", 0, epochs=40)
    return store


@pytest.fixture(scope="module")
def gathered(store: Store) -> Gathered:
    return gather(store)


def table(gathered: Gathered, name: str) -> Table:
    contents = contents_for(gathered)
    return build(next(plan for plan in contents.tables if plan.name == name), contents, gathered)


def row(found: Table, title: str, block: str = "CIFAR-10, labels shuffled 3 times") -> tuple[str, ...]:
    rows = [cells for each in found.blocks if each.heading.startswith(block) for cells in each.rows]
    return next(cells for cells in rows if cells[0] == title)


def test_the_mean_is_over_all_epochs_and_the_spread_over_seeds(gathered: Gathered) -> None:
    found = mean_train_accuracy(gathered.of("cifar-shuffle-3", "adam"))
    assert (found.median, found.low, found.high) == pytest.approx((0.3, 0.2, 0.4))
    assert (found.n, found.diverged, found.others) == (3, 0, 0)


def test_going_on_past_the_budget_changes_no_mean(tmp_path: Path) -> None:
    store, budget = Store(tmp_path), 100
    for seed, epochs in enumerate((budget, 2 * budget)):
        learnt = {"learnt": lambda epoch: 0.2 if epoch < budget else 1.0}
        write_run(store, "cifar-shuffle-3", "adam", seed, epochs=epochs, **learnt)
    found = mean_train_accuracy(gather(store).of("cifar-shuffle-3", "adam"))
    assert (found.low, found.high) == pytest.approx((0.2, 0.2))


def test_table_8_has_means_in_percent_a_diverged_seed_and_the_gain(gathered: Gathered) -> None:
    found = table(gathered, "table-8-non-stationarity")
    assert row(found, "Adam")[1:] == ("24.7", "30.0 (20.0–40.0)", "3", "–")
    assert row(found, "Adam with EGD")[1:] == ("56.0", "60.0", "3", "2.3× / 2.0×")
    assert row(found, "RAdam")[1:] == ("22.9", "22.9, 1 diverged", "2", "–")
    assert row(found, "RAdam with EGD")[1:] == ("47.3", "1 unfinished", "–", "2.1× / –")
    assert row(found, "RMSprop")[1:] == ("31.6", "not run", "–", "–")


def test_table_6_has_steps_times_a_step_and_the_end_of_the_full_length_run(gathered: Gathered) -> None:
    found = table(gathered, "table-6-mnist")
    egd = row(found, "EGD", "MNIST")
    assert egd[1:6] == ("700", "800 (700–900)", "3/3", "61.6× / –", "2.2×")
    assert egd[6] == "34.7 / 0.02"
    assert egd[8].startswith("91.9 / 100.0")
    fair = row(found, "AdamW, the same decay (ours: the fair baseline)", "MNIST, 1000 images: not in the paper")
    assert fair[2:4] == ("1800", "3/3")
    assert row(found, "EGD, randomized, rank 16", "MNIST")[3] == "0/3, 1 diverged"
    assert row(found, "EGD, randomized, rank 16", "MNIST")[8] == "91.3 / 1 diverged"
    assert "No full-length run yet, so no final accuracy: EGD, randomized, rank 16; AdamW, the same decay" in found.notes
    record = next(each for each in found.records if each["method"] == "egd")
    assert (record["paper_steps"], record["median"], record["full_length_runs"]) == (700, "800", 1)


def test_seeds_with_polar_factors_of_two_kinds_are_told(gathered: Gathered) -> None:
    (note,) = [note for note in table(gathered, "table-6-mnist").notes if "polar" in note]
    assert note.endswith("taken in different ways: MNIST, 1000 images, EGD (2 exact, 1 fast)")


def test_the_end_is_that_of_full_length_runs_alone(gathered: Gathered) -> None:
    runs = gathered.of("mnist", "egd")
    assert [run.full for run in runs] == [True, False, False]
    found = final_accuracy(runs)
    assert (found.n, found.others, found.median) == (1, 2, runs[0].test_accuracy)
    assert found.low is not None
    assert found.low > 0.99, "not the start of the run"
    assert final_accuracy(gathered.of("mnist", "adamw-decay")).n == 0


def test_a_run_that_is_long_for_its_failure_has_no_say_on_the_end_but_the_first_has(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, crossed in enumerate([None, 6, None, 8]):
        write_run(store, "mnist", "egd", seed, crossed)
    write_run(store, "mnist", "adamw", 0, 6)
    write_run(store, "mnist", "adamw", 1)
    for seed in range(3):
        write_run(store, "mnist", "grokfast-ema", seed)
    budget = catalog.load("mnist").method("egd-rsvd-16").epochs
    write_run(store, "mnist", "egd-rsvd-16", 0, 6)
    write_run(store, "mnist", "egd-rsvd-16", 1, budget - 2, epochs=budget)
    write_run(store, "mnist", "egd-rsvd-16", 2, 6, epochs=budget)
    write_run(store, "mnist", "egd-rsvd-8", 0)
    write_run(store, "mnist", "egd-rsvd-8", 1)
    write_run(store, "mnist", "egd-rsvd-8", 2, 6, epochs=40, diverged=True)
    methods = ("egd", "adamw", "grokfast-ema", "egd-rsvd-16", "egd-rsvd-8")
    finals = {method: final_accuracy(gather(store).of("mnist", method)).n for method in methods}
    assert finals == {"egd": 1, "adamw": 0, "grokfast-ema": 3, "egd-rsvd-16": 1, "egd-rsvd-8": 2}


def accuracy(low: float, high: float, n: int = 3, diverged: int = 0, others: int = 0) -> Accuracy:
    return Accuracy(n, diverged, others, (low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("paper", "found", "kind", "words"),
    [
        (0.43, accuracy(0.42, 0.44), "inside", "inside the spread"),
        (0.43, accuracy(0.4304, 0.44), "inside", "inside the spread"),
        (0.43, accuracy(0.4306, 0.44), "outside", "outside: 0.1 points below the spread [43.1, 44.0]"),
        (0.43, accuracy(0.40, 0.41), "outside", "outside: 2.0 points above the spread [40.0, 41.0]"),
        (0.43, accuracy(0.42, 0.44, 2, diverged=1), "inside", "inside the spread; 1 of 3 seeds diverged"),
        (0.43, Accuracy(0, 3, 0, None, None, None), "outside", "outside: all 3 seeds diverged"),
        (0.43, accuracy(0.42, 0.44, 2), "too few seeds", "too few seeds: 2, at least 3 are needed"),
        (0.43, accuracy(0.42, 0.44, 2, others=1), "unfinished", "unfinished: 1 of 3 seeds"),
        (0.43, Accuracy(0, 0, 0, None, None, None), "not run", "not run"),
    ],
)
def test_verdicts_on_a_mean(paper: float, found: Accuracy, kind: str, words: str) -> None:
    assert judge_mean(paper, found) == (kind, words)


def test_one_full_length_run_can_agree_and_is_too_little_to_contradict() -> None:
    one = accuracy(0.910, 0.915, 1, others=7)
    assert judge_final(0.9155, one) == ("inside", "inside the spread")
    kind, words = judge_final(0.919, one)
    assert (kind, words) == ("too few seeds", "too few seeds: 1 of full length; 0.4 points above the spread [91.0, 91.5]")
    assert judge_final(0.919, accuracy(0.910, 0.915, 3))[0] == "outside"
    assert judge_final(0.95, Accuracy(1, 2, 5, 0.9, 0.9, 0.9))[0] == "too few seeds", "those that diverged have no end"
    assert judge_final(0.95, Accuracy(0, 3, 0, None, None, None)) == ("outside", "outside: all 3 seeds diverged")
    assert judge_final(0.95, Accuracy(0, 3, 5, None, None, None))[0] == "not run", "the others stopped before their end"
    assert judge_mean(0.95, Accuracy(0, 2, 0, None, None, None))[1].startswith("too few seeds: 2,")
    assert judge_final(0.919, Accuracy(0, 0, 8, None, None, None)) == ("not run", "not run: none that was taken to the end")


def test_the_cells_of_these_tables_are_judged(store: Store) -> None:
    def cell(method: str, measure: str) -> Verdict:
        return next(one for one in verdicts if (one.method, one.measure) == (method, measure))

    verdicts = [one for one in check(store).verdicts if one.experiment in ("mnist", "cifar-shuffle-3")]
    assert (cell("egd", "steps").kind, cell("egd", "steps").ours, cell("egd", "steps").spread) == (
        "inside",
        "800",
        "700–900",
    )
    assert cell("egd", "ms per step").kind == "other hardware"
    assert cell("egd", "final accuracy").kind == "too few seeds"
    assert cell("egd-rsvd-4", "final accuracy").kind == "not run"
    assert (cell("adam", "mean accuracy").kind, cell("adam", "mean accuracy").paper) == ("inside", "24.7")
    assert cell("adam-egd", "mean accuracy").verdict == "outside: 4.0 points below the spread [60.0, 60.0]"
    assert cell("radam", "mean accuracy").verdict == "inside the spread; 1 of 3 seeds diverged"


def test_a_run_that_passed_and_then_diverged_passed_and_has_no_end(tmp_path: Path) -> None:
    store = Store(tmp_path)
    write_run(store, "mnist", "egd", 0, 6, epochs=1000, diverged=True)
    (run,) = gather(store).of("mnist", "egd")
    assert (run.state, run.crossed, run.full, run.diverged) == ("passed", 6, False, True)
    assert str(final_accuracy([run])) == "1 diverged"


def test_where_nothing_groks_the_table_is_of_final_accuracies(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(3):
        write_run(store, "full-cifar", "adam-3e-4", seed, learnt=lambda epoch: 0.75, diverged=seed == 2)
    found = table(gather(store), "full-cifar")
    assert found.title == "Where nothing groks: all of CIFAR-10: final test accuracy"
    ((cells,),) = [block.rows for block in found.blocks]
    assert re.fullmatch(r"[\d.]+( \([\d.]+–[\d.]+\))?, 1 diverged", cells[1])
    assert cells[2:] == ("75.0", "2")
    assert not check(store).remarks, "that it has no claims is said where it is asked for"
    report = write_report(store, tmp_path / "out")
    assert report.complete
    assert report.cost[0].startswith("Where nothing groks: all of CIFAR-10: final test accuracy: ")
