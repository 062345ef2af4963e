"""Tuning, without training: the window finds what is planted, scores read what they should, a bad plan is told of."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import CIFAR, CPU, MNIST, TRANSFORMER, law

from egalitarian.lab.config import catalog, spec
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.runs.store import Store
from egalitarian.lab.runs.sweep import rehearse
from egalitarian.lab.tuning.estimate import estimate
from egalitarian.lab.tuning.plan import Family, chosen, load_plan, shrunk
from egalitarian.lab.tuning.points import Known, Outcome, Point
from egalitarian.lab.tuning.search import Search
from egalitarian.lab.tuning.trials import Trials, Workshop
from egalitarian.lab.tuning.window import Place, Window, value
from egalitarian.lab.tuning.work import prepare

PLAN = load_plan()
"""Plain, row norm, RSVD, Grokfast, Muon, EGD with decay before and after."""
OWN = """
[all]
size = 3
moves = 1
lr_factor = 2.0
decay_factor = 3.0
cut = 2.0
validation = 0.5
tuning_seeds = [6]
fresh_seeds = [0]

[families.mine]
experiment = "parity-2"
plain = "egd"
budget = 8

[families.mine.methods.egd]
title = "EGD"
lr = { key = "optim.lr", centre = 0.05 }
decay = { key = "optim.weight_decay", centre = 1e-3 }
expected = 5
ms_per_epoch = 1.0
"""


def seed(crossed: int | None, accuracy: float = 0.5, train: float = 0.5, number: int = 0) -> Outcome:
    return Outcome(number, f"id-{number}", 10, crossed, accuracy, train, diverged=False)


def point(*crossed: int | None, place: Place = (0, 0), **more: Any) -> Point:
    return Point(place, 1.0, 1.0, 100, tuple(seed(one, number=number, **more) for number, one in enumerate(crossed)))


def trials(family: Family, method: str, *changes: str) -> Trials:
    return Trials(family, method, changes, Workshop(Store(Path("nowhere")), CPU))


# the window


@pytest.mark.parametrize("size", [3, 5, 7])
def test_a_window_has_its_points_once_and_the_middle_first(size: int) -> None:
    window = Window(size, middle=(2, -1))
    places = window.places()
    assert len(places) == len(set(places)) == size**2
    assert places[0] == (2, -1)
    away = [max(abs(lr - 2), abs(decay + 1)) for lr, decay in places]
    assert away == sorted(away)
    with_none = Window(size, no_decay=True).places()
    assert with_none[: size**2] == Window(size).places()
    assert {lr for lr, decay in with_none if decay is None} == {lr for lr, _ in Window(size).places()}


def test_the_edge_of_a_window() -> None:
    window = Window(5, middle=(1, 0))
    assert [window.outward((lr, 0))[0] for lr in (-1, 0, 1, 2, 3)] == [-1, 0, 0, 0, 1]
    assert window.outward((-1, 2)) == (-1, 1)
    assert window.outward((1, None)) == (0, 0)  # nothing lies below no decay
    assert window.outward((3, None)) == (1, 0)
    assert window.outward((1, -2)) == (0, -1)
    assert window.moved((1, -1)) == Window(5, middle=(2, -1))
    assert window.corners == ((-1, -2), (3, 2))


def test_values_on_the_lattice() -> None:
    assert [value(0.0416239, 2.0, power) for power in (-1, 0, 1)] == [0.0208, 0.0416239, 0.0832]
    assert value(1e-3, 3.0, None) == 0


# the search


def family(**changes: Any) -> Family:
    return PLAN["addition"].replace(**changes)


def planted(best: tuple[int, int], tried: list[tuple[Place, int]]) -> Callable[[Place, int], Point]:
    """Epochs grow with the distance from a place; no decay never passes."""

    def trial(place: Place, budget: int) -> Point:
        tried.append((place, budget))
        lr, decay = place
        epochs = None if decay is None else 10 + 4 * (abs(lr - best[0]) + abs(decay - best[1]))
        crossed = epochs if epochs is not None and epochs < budget else None
        return Point(place, 1.0, 1.0, budget, (seed(crossed),))

    return trial


def test_the_window_stays_when_the_best_is_inside() -> None:
    tried: list[tuple[Place, int]] = []
    search = Search(family(size=5, moves=4))
    search.run(planted((1, -1), tried))
    assert search.best is not None
    assert search.best.place == (1, -1)
    assert (search.inside, search.moves, len(tried)) == (True, 0, 25)


def test_the_window_follows_a_best_on_its_edge_and_trains_only_what_is_new() -> None:
    tried: list[tuple[Place, int]] = []
    told: list[str] = []
    search = Search(family(size=5, moves=4))
    search.run(planted((3, 0), tried), told.append)
    assert search.best is not None
    assert search.best.place == (3, 0)
    assert (search.inside, search.moves) == (True, 2)
    assert len(tried) == len({place for place, _ in tried}) == 25 + 2 * 5
    assert told == [f"the best point is on the grid's edge: move {move} of at most 4" for move in (1, 2)]


def test_the_window_stops_at_its_last_move_and_says_so() -> None:
    tried: list[tuple[Place, int]] = []
    search = Search(family(size=3, moves=2, budget=1000))
    search.run(planted((9, 9), tried))
    assert (search.inside, search.moves, len(tried)) == (False, 2, 9 + 2 * 5)
    assert search.best is not None
    assert search.best.place == (3, 3)


@law
@given(st.integers(-5, 5), st.integers(-5, 5), st.sampled_from([3, 5]), st.booleans())
def test_a_planted_optimum_is_found_and_is_inside(lr: int, decay: int, size: int, no_decay: bool) -> None:
    tried: list[tuple[Place, int]] = []
    search = Search(family(size=size, moves=5, no_decay=no_decay, cut=1.0))
    search.run(planted((lr, decay), tried))
    assert search.best is not None
    assert search.best.place == (lr, decay)
    assert search.inside


def test_no_point_gets_more_than_a_multiple_of_the_best_before_it() -> None:
    tried: list[tuple[Place, int]] = []
    search = Search(family(size=5, cut=2.0, budget=500))
    search.run(planted((0, 0), tried))
    assert [budget for _, budget in tried] == [500] + [22] * 24
    none = Search(family(size=3, moves=0, budget=7))  # nothing passes, so nothing is cut
    tried.clear()
    none.run(planted((0, 0), tried))
    assert [budget for _, budget in tried] == [7] * 9
    accuracy = Search(family(size=3, moves=0, budget=7, score="train-accuracy"))
    assert accuracy.budget == 7


# scores


@pytest.mark.parametrize("first", [(20, 250), (10, 125)])
def test_a_cut_that_the_best_was_never_under_decides_nothing(first: tuple[int, int]) -> None:
    """Two points of which one is twice as fast on every seed, whichever is tried first."""
    slow, fast = (20, 20, 20, 250), (10, 10, 10, 125)
    middle, others = (slow, fast) if first == (20, 250) else (fast, slow)

    def trial(place: Place, budget: int) -> Point:
        crossed = [one if one < budget else None for one in (middle if place == (0, 0) else others)]
        return Point(place, 1.0, 1.0, budget, tuple(seed(one, number=number) for number, one in enumerate(crossed)))

    search = Search(family(size=3, moves=0, budget=300, cut=5.0))
    search.run(trial)
    assert search.best is not None
    assert [one.crossed for one in search.best.seeds] == list(fast)


def test_failures_count_first_then_the_median_and_a_failure_is_infinite() -> None:
    assert point(5, 9, 7).median == 7
    assert point(5, None, 7).median == 7
    assert math.isinf(point(5, None, None).median)
    ranked = [point(5, 6, 7), point(7, 7, 7), point(5, 6, None), point(None, None, 1), point(None, None, None)]
    ranks = [one.rank("epochs") for one in ranked]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
    better, worse = point(None, accuracy=0.9), point(None, accuracy=0.8)
    assert better.rank("epochs") < worse.rank("epochs")
    assert point(5, 6, 6).rank("epochs") < point(6, 6, 6).rank("epochs")
    assert point(None, train=0.9).rank("train-accuracy") < point(1, train=0.8).rank("train-accuracy")


def records(test: list[float], validation: list[float], loss: float | None = 1.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for epoch, (one, other) in enumerate(zip(test, validation, strict=True)):
        accuracies = {"test_accuracy": one, "validation_accuracy": other, "train_accuracy": 0.5}
        found += [{"epoch": epoch, "train_loss": loss, **accuracies}, {"epoch": epoch, "snapshot": {}}]
    return found


def test_validation_decides_and_not_test() -> None:
    both = records([0.1, 0.99, 0.99, 0.99], [0.1, 0.2, 0.99, 0.4])
    read = Outcome.of(3, "id", both, "validation_accuracy", 0.95, 10)
    assert (read.crossed, read.accuracy, read.epochs) == (2, 0.4, 4)
    assert Outcome.of(3, "id", both, "test_accuracy", 0.95, 10).crossed == 1


def test_what_is_beyond_the_budget_does_not_count() -> None:
    both = records([0.1, 0.1, 0.99], [0.1, 0.2, 0.99])
    read = Outcome.of(3, "id", both, "validation_accuracy", 0.95, 2)
    assert (read.crossed, read.accuracy, read.epochs) == (None, 0.2, 2)


def test_epochs_that_a_diverged_seed_lacks_count_as_nothing() -> None:
    read = Outcome.of(3, "id", records([0.1] * 2, [0.1] * 2, loss=None), "test_accuracy", 0.95, 10)
    assert read.diverged
    assert read.mean_train_accuracy == pytest.approx(2 * 0.5 / 10)
    assert Outcome.of(3, "id", records([0.1] * 4, [0.1] * 4), "test_accuracy", 0.95, 4).mean_train_accuracy == 0.5


def test_what_a_file_says_is_known_for_its_runs_and_its_budget() -> None:
    passed, failed = point(3, 4), Point((1, 0), 1.0, 1.0, 100, (seed(None, number=7),))
    known = Known({"points": [passed.plain(), failed.plain()], "fresh": [seed(5, number=9).plain()]})
    assert known.point(["id-0", "id-1"], 50, 50) == (50, passed.seeds)  # both passed before
    assert known.point(["id-0", "id-1"], 4, 50) is None
    assert known.point(["id-0"], 100, 100) is None
    assert known.point(["id-7"], 100, 100) == (100, failed.seeds)
    assert known.point(["id-7"], 50, 100) == (100, failed.seeds)  # it was tried for longer
    assert known.point(["id-7"], 50, 99) is None
    assert known.point(["id-7"], 150, 200) is None
    assert known.fresh(["id-9"]) == (seed(5, number=9),)
    assert known.fresh(["id-8"]) is None
    assert Known().fresh([]) is None


# the plan


def _is_polar(chain: Sequence[spec.Transform]) -> bool:
    return len(chain) == 1 and isinstance(chain[0], spec.Polar)


def test_the_labs_plan_has_six_families_with_every_way() -> None:
    assert list(PLAN) == ["addition", "multiplication", "parity", "mnist", "transformer", "cifar"]
    for each in PLAN.values():
        loaded = catalog.load(each.experiment, added=each.added)
        assert set(each.methods) <= set(loaded.methods)
        chains = [loaded.method(name).transform for name in each.methods]
        for kind in (spec.RowNorm, spec.LowRankPolar, spec.GrokfastEMA):
            assert any(isinstance(link, kind) for chain in chains for link in chain)
        muon = [method.hidden for method in map(loaded.method, each.methods) if method.hidden is not None]
        assert "muon" in {optim.optimizer for optim in muon}
        assert not loaded.method(each.plain).transform
        assert not set(each.tuning_seeds) & set(each.fresh_seeds)


@pytest.mark.parametrize("name", PLAN)
def test_what_egd_is_given_row_norm_and_the_plain_optimizer_are_given(name: str) -> None:
    loaded = catalog.load(PLAN[name].experiment, added=PLAN[name].added)

    def ways(kind: type[spec.Transform] | None) -> set[tuple[str, str, str]]:
        """How decay enters, and by which optimizers, of all parameters and of the matrices."""
        methods = [loaded.method(method) for method in PLAN[name].methods]
        matching = [one for one in methods if tuple(map(type, one.transform)) == (() if kind is None else (kind,))]
        return {(one.decay, one.optim.optimizer, (one.hidden or one.optim).optimizer) for one in matching}

    egd = ways(spec.Polar)
    assert "before" in {decay for decay, *_ in egd}
    assert {"after", "decoupled"} & {decay for decay, *_ in egd}
    assert ways(spec.RowNorm) == egd
    assert {each[1:] for each in egd} <= {each[1:] for each in ways(None)}


@pytest.mark.parametrize("name", PLAN)
def test_a_place_changes_the_two_settings_and_what_is_scaled_along(name: str) -> None:
    each = PLAN[name]
    for method, tuned in each.methods.items():
        own = trials(each, method)
        lr, decay = own.settings((1, -1))
        assert (lr, decay) == (value(tuned.lr.centre, each.lr_factor, 1), value(tuned.decay.centre, each.decay_factor, -1))
        here, centre = (own.experiment(place, validation=False).method(method) for place in ((1, -1), (0, 0)))
        part, _, key = tuned.lr.key.partition(".")
        assert getattr(getattr(here, part), key) == lr
        assert (here.hidden or here.optim).lr == lr  # the matrices move with it
        assert (here.hidden or here.optim).weight_decay == decay
        assert here.optim.lr / centre.optim.lr == pytest.approx(each.lr_factor)
        apart = own.experiment((1, -1), validation=True).training.validation
        assert apart == each.validation
        assert own.experiment((1, -1), validation=False).training.validation == 0


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize(("name", "smaller"), [("mnist", MNIST), ("transformer", TRANSFORMER), ("cifar", CIFAR)])
def test_methods_that_are_added_can_be_trained(name: str, smaller: tuple[str, ...]) -> None:
    for method in PLAN[name].added:
        rank = ["methods.egd-rsvd-32.transform.0.rank=3"] if method == "egd-rsvd-32" else []
        rehearse(trials(PLAN[name], method, *smaller, *rank).experiment((0, 0), validation=True), method, 0)


def test_an_added_method_takes_no_place() -> None:
    with pytest.raises(SpecError, match="an added method must have a name of its own, got 'egd'"):
        catalog.load("mnist", added={"egd": {"title": "mine"}})


def test_an_estimate_grows_with_the_window() -> None:
    each = PLAN["addition"]
    small, large = (estimate(shrunk(each, size), each.methods["egd"]) for size in (3, 5))
    assert (small.points, large.points) == (9, 25)
    assert small.seconds < large.seconds < large.most_seconds
    assert estimate(PLAN["cifar"], PLAN["cifar"].methods["adam"]).points == 12


def test_the_page_has_the_estimates() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tuning.md").read_text()
    total = [0.0] * 4
    for each in PLAN.values():
        found = [[estimate(one, tuned) for tuned in each.methods.values()] for one in (each, shrunk(each, 3))]
        minutes = [
            sum(part) / 60 for one in found for part in zip(*[(e.seconds, e.most_seconds) for e in one], strict=True)
        ]
        total = [one + other for one, other in zip(total, minutes, strict=True)]
        points = f"{found[0][0].points} to {found[0][0].most_points}"
        cells = (points, *(f"{least:.0f} to {most:.0f}" for least, most in (minutes[:2], minutes[2:])))
        said = rf"\| {each.name}(, 3 x 3 in both columns)? \| " + r" \| ".join(cells) + r" \|"
        assert re.search(said, page), said
    assert "| all | | {:.0f} to {:.0f} | {:.0f} to {:.0f} |".format(*total) in page


def test_quick_is_small_and_still_a_plan() -> None:
    for each in PLAN.values():
        small = shrunk(each, quick=True)
        assert (small.size, small.moves, len(small.tuning_seeds), len(small.fresh_seeds)) == (3, 1, 1, 2)
        assert small.budget <= 20


def test_a_plan_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(OWN)
    (mine,) = chosen(load_plan(tmp_path / "plan.toml"), "all")
    assert (mine.name, mine.size, mine.methods["egd"].lr.centre) == ("mine", 3, 0.05)


BAD = {
    "not TOML": ("[all", r"plan\.toml must be a TOML file, got one that cannot be read"),
    "no family": ("[all]\nsize = 3", "families must hold at least one, got none"),
    "a typo": (OWN.replace("moves", "mvoes"), r"families\.mine\.mvoes must be a known setting.*did you mean 'moves'"),
    "an unknown part": (f"{OWN}\n[familes.x]\n", "familes must be a known setting"),
    "a size of 1": (OWN.replace("size = 3", "size = 1"), "size must be >= 3, got 1; a point must have neighbours"),
    "an even size": (OWN.replace("size = 3", "size = 4"), "size must be odd, got 4"),
    "no plain": (OWN.replace('plain = "egd"', 'plain = "sgd"'), "plain must be one of the methods, got 'sgd'"),
    "seeds in both": (OWN.replace("fresh_seeds = [0]", "fresh_seeds = [6]"), "none of the tuning seeds, got 6 in both"),
    "no seeds": (OWN.replace("tuning_seeds = [6]", "tuning_seeds = []"), "tuning_seeds must name at least one seed"),
    "no validation": (OWN.replace("validation = 0.5", "validation = 0"), "validation must be > 0 where epochs count"),
    "a factor of 1": (OWN.replace("lr_factor = 2.0", "lr_factor = 1"), "lr_factor must be > 1, got 1"),
    "a centre of 0": (OWN.replace("centre = 0.05", "centre = 0"), r"methods\.egd\.lr\.centre must be > 0, got 0"),
    "a size of a million": (OWN.replace("size = 3", "size = 1000001"), "size must be <= 99, got 1000001"),
    "one setting twice": (
        OWN.replace("optim.weight_decay", "optim.lr"),
        "lr and decay must be two settings, got 'optim.lr'",
    ),
    "a dot in a name": (
        OWN.replace("methods.egd", 'methods."egd.2"').replace('plain = "egd"', 'plain = "egd.2"'),
        "a tuned method's name must have no dot, got 'egd.2'",
    ),
    "a seed twice": (OWN.replace("fresh_seeds = [0]", "fresh_seeds = [0, 0]"), r"must name each seed once, got \[0, 0\]"),
    "a huge factor": (OWN.replace("lr_factor = 2.0", "lr_factor = 1e200"), "optim.lr must stay a number 2 steps from its"),
    "a path for a name": (OWN.replace("families.mine", 'families."a/../b"'), r"a family's name must be .* got 'a/\.\./b'"),
    "the name of all": (OWN.replace("families.mine", "families.all"), "a family's name must be .* got 'all'"),
    "a name of other files": (OWN.replace("families.mine", "families.t-quick"), "not ending in -quick or -changed"),
    "two names": (OWN.replace("budget = 8", 'budget = 8\nname = "u"'), "name must be absent, got 'u'"),
    "a plain value": ("all = 3\n[families.x]\nsize = 3", "all and every family must be tables"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_told_of(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        load_plan(tmp_path / "plan.toml")
    assert "; " in str(caught.value)


@pytest.mark.parametrize("change", ["optim.lr=5", "methods.egd.optim.lr=5", "training.validation=0.2"])
def test_a_change_that_the_tuning_undoes_is_refused(change: str) -> None:
    workshop = Workshop(Store(Path("nowhere")), CPU)
    with pytest.raises(SpecError, match=f"--set must not change what is tuned, got '{change}' for egd of addition"):
        prepare(PLAN["addition"], ["egd"], [change], workshop)


def test_an_experiment_is_found_beside_its_plan(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "parity-2"\n')
    (tmp_path / "plan.toml").write_text(OWN.replace('"parity-2"', '"own.toml"'))
    assert load_plan(tmp_path / "plan.toml")["mine"].experiment == str(tmp_path / "own.toml")


def test_what_is_not_in_the_plan_is_told_of() -> None:
    with pytest.raises(SpecError, match=r"FAMILY must be one of the plan's, got 'adition'; did you mean 'addition'"):
        chosen(PLAN, "adition")
    with pytest.raises(
        SpecError, match=r"--method must be one that family 'addition' tunes, got 'edg'; did you mean 'egd'"
    ):
        PLAN["addition"].only(("edg",))
    with pytest.raises(SpecError, match="must be a TOML file, got one that cannot be read"):
        load_plan(Path("nowhere.toml"))


def test_a_key_that_leads_nowhere_is_told_of() -> None:
    each = PLAN["addition"]
    tuned = each.methods["egd"]
    wrong = tuned.replace(lr=tuned.lr.replace(key="optim.rl"))
    with pytest.raises(SpecError, match="rl must be a known setting"):
        trials(each.replace(methods={**each.methods, "egd": wrong}), "egd").experiment((0, 0), validation=True)
    wrong = tuned.replace(lr=tuned.lr.replace(scales=("hidden.lr",)))
    with pytest.raises(SpecError, match=r"scales must name numbers that the method has, got 'hidden\.lr'"):
        trials(each.replace(methods={**each.methods, "egd": wrong}), "egd").experiment((0, 0), validation=True)
