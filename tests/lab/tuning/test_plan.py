"""The tuning plan: what a file may have, the lab's own plan, the estimate of its cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from egalitarian.lab.config import (
    GrokfastEMASettings,
    LowRankPolarSettings,
    PolarSettings,
    RowNormSettings,
    SpecError,
    TransformSettings,
    catalog,
)
from egalitarian.lab.tuning.plan import chosen, estimate, load_plan, shrunk

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


def test_the_labs_plan_has_six_families_with_every_method() -> None:
    assert list(PLAN) == ["addition", "multiplication", "parity", "mnist", "transformer", "cifar"]
    for each in PLAN.values():
        loaded = catalog.load(each.experiment, added=each.added)
        assert set(each.methods) <= set(loaded.methods)
        chains = [loaded.method(name).transform for name in each.methods]
        for kind in (RowNormSettings, LowRankPolarSettings, GrokfastEMASettings):
            assert any(isinstance(link, kind) for chain in chains for link in chain)
        muon = [method.hidden for method in map(loaded.method, each.methods) if method.hidden is not None]
        assert "muon" in {optim.optimizer for optim in muon}
        assert not loaded.method(each.plain).transform
        assert not set(each.tuning_seeds) & set(each.fresh_seeds)


@pytest.mark.parametrize("name", PLAN)
def test_what_egd_is_given_row_norm_and_the_plain_optimizer_are_given(name: str) -> None:
    loaded = catalog.load(PLAN[name].experiment, added=PLAN[name].added)

    def kinds(kind: type[TransformSettings] | None) -> set[tuple[str, str, str]]:
        """How decay enters, and by which optimizers, of all parameters and of the matrices."""
        methods = [loaded.method(method) for method in PLAN[name].methods]
        matching = [one for one in methods if tuple(map(type, one.transform)) == (() if kind is None else (kind,))]
        return {(one.decay, one.optim.optimizer, (one.hidden or one.optim).optimizer) for one in matching}

    egd = kinds(PolarSettings)
    assert "before" in {decay for decay, *_ in egd}
    assert {"after", "decoupled"} & {decay for decay, *_ in egd}
    assert kinds(RowNormSettings) == egd
    assert {each[1:] for each in egd} <= {each[1:] for each in kinds(None)}


def test_an_added_method_replaces_none() -> None:
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
        line = rf"\| {each.name}(, 3 x 3 in both columns)? \| " + r" \| ".join(cells) + r" \|"
        assert re.search(line, page), line
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
def test_a_bad_plan_is_an_error(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        load_plan(tmp_path / "plan.toml")
    assert "; " in str(caught.value)


def test_an_experiment_is_found_in_the_folder_of_its_plan(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "parity-2"\n')
    (tmp_path / "plan.toml").write_text(OWN.replace('"parity-2"', '"own.toml"'))
    assert load_plan(tmp_path / "plan.toml")["mine"].experiment == str(tmp_path / "own.toml")


def test_a_name_that_the_plan_lacks_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"FAMILY must be one of the plan's, got 'adition'; did you mean 'addition'"):
        chosen(PLAN, "adition")
    with pytest.raises(
        SpecError, match=r"--method must be one that family 'addition' tunes, got 'edg'; did you mean 'egd'"
    ):
        PLAN["addition"].only(("edg",))
    with pytest.raises(SpecError, match="must be a TOML file, got one that cannot be read"):
        load_plan(Path("nowhere.toml"))
