"""The tuning plan: what a file may have, the lab's own plan and its rules, the estimate of its cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from egalitarian.lab.config import (
    GrokfastEMASettings,
    HalfSpectrumSettings,
    MomentumSettings,
    PolarSettings,
    PowerSettings,
    RandomSpectrumSettings,
    ReversedSpectrumSettings,
    RowNormSettings,
    SpecError,
    catalog,
)
from egalitarian.lab.tuning.plan import PLANS, chosen, estimate, load_plan, shrunk

PLAN = load_plan()
STOCK = ("sgd", "sgd-momentum", "adam", "adamw")
RIVALS = ("lion", "lion-clip", "grokfast-ema", "muon", "row-norm")
FORMS = ("egd-sgd", "egd-adamw", "egd-hidden")
OWN = """
[all]
lrs = 3
decays = 1
lr_factor = 2.0
decay_factor = 3.0
basins = 1
around = 4
thirds = 0
further = 3
patience = 2.0
validation = 0.5
tuning_seeds = [6]
fresh_seeds = [0]

[families.mine]
experiment = "parity-2"
stock = ["egd"]
budget = 8

[families.mine.methods.egd]
title = "EGD"
lr = { key = "optim.lr", first = 0.05 }
decay = { key = "optim.weight_decay", first = 1e-3 }
"""


def test_the_labs_plan_has_five_families_of_the_same_twelve_methods() -> None:
    assert list(PLAN) == ["addition", "parity", "mnist", "transformer", "cifar"]
    for each in PLAN.values():
        assert tuple(each.methods) == (*STOCK, *RIVALS, *FORMS)
        assert (each.stock, each.forms) == (STOCK, FORMS)
        assert set(each.added) == set(each.methods), "no method is the experiment's own"
    assert PLAN["addition"].also == ("multiplication-97",)
    assert PLAN["parity"].also == ("parity-4",)


@pytest.mark.parametrize("name", PLAN)
def test_egds_forms_get_no_more_points_than_the_stock_optimizers(name: str) -> None:
    each = PLAN[name]
    assert each.points == (24 if name == "cifar" else 48)
    assert len(FORMS) * (each.points + each.further) <= len(STOCK) * each.points, "even with all points beyond edges"
    assert all(len(tuned.third) in (0, 8) for tuned in each.methods.values())


@pytest.mark.parametrize("name", PLAN)
def test_the_methods_are_those_of_the_rules(name: str) -> None:
    each = PLAN[name]
    loaded = {method: catalog.load(each.experiment, added=each.added).method(method) for method in each.methods}
    assert {method.decayed for method in loaded.values()} == {"all"}, "biases, too, as torch's optimizers do by default"
    assert {method.until for method in loaded.values()} == {None}
    for method in STOCK:
        assert loaded[method].transform == ()
        assert loaded[method].hidden is None
    for method in ("muon", "row-norm", "egd-sgd", "egd-adamw"):
        assert loaded[method].targets == each.matrices
    assert loaded["egd-hidden"].targets == loaded["lion-clip"].targets == each.hidden
    assert set(each.hidden) < set(each.matrices) or name == "mnist"
    kinds = {method: tuple(map(type, own.transform)) for method, own in loaded.items() if own.transform}
    assert kinds == {
        "grokfast-ema": (GrokfastEMASettings,),
        "row-norm": (MomentumSettings, RowNormSettings),
        "egd-sgd": (MomentumSettings, PolarSettings),
        "egd-adamw": (PolarSettings,),
        "egd-hidden": (MomentumSettings, PolarSettings),
    }
    for method in ("muon", "egd-hidden"):
        lr, decay = each.methods[method].lr, each.methods[method].decay
        assert lr.scales["optim.lr"] * decay.scales["optim.weight_decay"] == pytest.approx(1), (
            "AdamW shrinks as much a step"
        )


def test_an_added_method_replaces_one_of_its_name_and_the_claims_about_it() -> None:
    own = {"title": "mine", "epochs": 3, "decay": "decoupled", "targets": ["layers.*.weight"]}
    plain, loaded = catalog.load("mnist"), catalog.load("mnist", added={"egd": own})
    assert loaded.method("egd").title == "mine"
    assert "egd" in plain.claims
    assert set(loaded.claims) == set(plain.claims) - {"egd"}
    assert loaded.method("adamw") == plain.method("adamw")


def test_an_estimate_counts_points_and_passes() -> None:
    each = PLAN["addition"]
    assert estimate(each) == (12, 12 * 48, 12 * 60, 12 * 60 * 1500)
    assert estimate(each, ("sgd", "adamw")) == (2, 96, 120, 120 * 1500)


def test_quick_is_small_and_still_a_plan() -> None:
    for each in PLAN.values():
        small = shrunk(each)
        assert (small.points, small.further, len(small.tuning_seeds), len(small.fresh_seeds)) == (4, 0, 1, 2)
        assert small.budget <= 20
        assert small.forms == (), "nothing waits"


def test_a_plan_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(OWN)
    (mine,) = chosen(load_plan(tmp_path / "plan.toml"), "all")
    assert (mine.name, mine.points, mine.methods["egd"].lr.first) == ("mine", 3 + 4, 0.05)


BAD = {
    "not TOML": ("[all", r"plan\.toml must be a TOML file, got one that cannot be read"),
    "no family": ("[all]\nlrs = 3", "families must hold at least one, got none"),
    "a typo": (OWN.replace("basins", "bassins"), r"all\.bassins must be a known setting.*did you mean 'basins'"),
    "an unknown part": (f"{OWN}\n[familes.x]\n", "familes must be a known setting"),
    "one learning rate": (OWN.replace("lrs = 3", "lrs = 1"), "lrs must be >= 2 and <= 99, got 1"),
    "even decays": (OWN.replace("decays = 1", "decays = 2"), "decays must be odd, got 2"),
    "an unknown stock": (
        OWN.replace('stock = ["egd"]', 'stock = ["sgd"]'),
        "stock must name methods of the family, got 'sgd'",
    ),
    "no stock": (OWN.replace('stock = ["egd"]', "stock = []"), "stock must name at least one method, got none"),
    "an unknown form": (
        OWN.replace("budget = 8", 'budget = 8\nforms = ["edg"]'),
        "forms must name .* got 'edg'; did you mean 'egd'",
    ),
    "ours is no form": (OWN.replace("[all]", '[all]\nours = "egd"'), "ours must name methods of the family, got 'egd'"),
    "ours of a family": (OWN.replace("budget = 8", 'budget = 8\nours = "egd"'), "ours must be in .all., got 'egd'"),
    "a factor of one": (
        OWN.replace("first = 0.05", "first = 0.05, factor = 1.0"),
        "optim.lr's factor must not be 1, got 1",
    ),
    "no list of targets": (
        f'{OWN}settings = {{ targets = "matrices" }}\n',
        "targets must name a list of family 'mine' that is not empty, got 'matrices'",
    ),
    "seeds in both": (OWN.replace("fresh_seeds = [0]", "fresh_seeds = [6]"), "none of the tuning seeds, got 6 in both"),
    "no seeds": (OWN.replace("tuning_seeds = [6]", "tuning_seeds = []"), "tuning_seeds must name at least one seed"),
    "no validation": (OWN.replace("validation = 0.5", "validation = 0"), "validation must be > 0 where epochs count"),
    "a factor of 1": (OWN.replace("lr_factor = 2.0", "lr_factor = 1"), "lr_factor must be > 1, got 1"),
    "a first value of 0": (OWN.replace("first = 0.05", "first = 0"), r"methods\.egd\.lr\.first must be > 0, got 0"),
    "one setting twice": (
        OWN.replace("optim.weight_decay", "optim.lr"),
        "lr and decay must be two settings, got 'optim.lr'",
    ),
    "a ratio that is not there": (
        f'{OWN}third = [{{ title = "t", scales = {{ "optim.lr" = 2.0 }} }}]\n',
        "third.scales must name a setting with a ratio, got 'optim.lr'; use change",
    ),
    "a dot in a name": (
        OWN.replace("methods.egd", 'methods."egd.2"').replace('stock = ["egd"]', 'stock = ["egd.2"]'),
        "a tuned method's name must have no dot, got 'egd.2'",
    ),
    "a seed twice": (OWN.replace("fresh_seeds = [0]", "fresh_seeds = [0, 0]"), r"must name each seed once, got \[0, 0\]"),
    "a huge factor": (OWN.replace("lr_factor = 2.0", "lr_factor = 1e200"), "optim.lr must stay a number 10 steps from its"),
    "a path for a name": (OWN.replace("families.mine", 'families."a/../b"'), r"a family's name must be .* got 'a/\.\./b'"),
    "the name of all": (OWN.replace("families.mine", "families.all"), "a family's name must be .* got 'all'"),
    "a name of other files": (OWN.replace("families.mine", "families.t-quick"), "not ending in -quick or -changed"),
    "two names": (OWN.replace("budget = 8", 'budget = 8\nname = "u"'), "name must be absent, got 'u'"),
    "a plain value": ("all = 3\n[families.x]\nlrs = 3", "all, methods and every family must be tables"),
    "plain methods": (OWN.replace("[all]", "methods = 3\n[all]"), "all, methods and every family must be tables"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_an_error(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        load_plan(tmp_path / "plan.toml")
    assert "; " in str(caught.value)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_of_the_lab_has_a_name(name: str) -> None:
    plan = load_plan(Path(name))
    assert name in plan
    for family in plan.values():
        assert set(family.added) == set(family.methods), "no method is the experiment's own"


@pytest.mark.parametrize(("name", "methods"), [("spectrum", 12), ("spectrum-rescaled", 9)])
def test_the_plan_of_spectra_has_the_fair_comparisons_rules_and_its_coarse_grid_alone(name: str, methods: int) -> None:
    family, addition = load_plan(Path("spectrum"))[name], PLAN["addition"]
    for rule in (
        *("experiment", "budget", "readings", "fresh_readings", "lrs", "decays", "lr_factor", "decay_factor"),
        *("further", "patience", "validation", "tuning_seeds", "fresh_seeds", "matrices"),
    ):
        assert getattr(family, rule) == getattr(addition, rule), rule
    assert (family.points, estimate(family).points) == (24, methods * 24)


@pytest.mark.parametrize("name", ["spectrum", "spectrum-rescaled"])
def test_the_methods_of_that_plan_differ_in_the_spectrum_alone(name: str) -> None:
    family, rescaled = load_plan(Path("spectrum"))[name], name == "spectrum-rescaled"
    experiment = catalog.load(family.experiment, added=family.added)
    methods = {each: experiment.method(each) for each in family.methods}
    powers = {f"power-{25 * number}": PowerSettings(c=number / 4, rescaled=rescaled) for number in range(9)}
    others = {"random": RandomSpectrumSettings(), "half": HalfSpectrumSettings(), "reversed": ReversedSpectrumSettings()}
    links = powers if rescaled else powers | others
    assert {each: method.transform for each, method in methods.items()} == {each: (link,) for each, link in links.items()}
    plain = methods["power-0"].replace(title="", transform=())
    assert all(method.replace(title="", transform=()) == plain for method in methods.values())
    assert (plain.decay, plain.decayed, plain.targets) == ("after", "all", ("hidden.weight", "output.weight"))
    assert plain.optim.momentum == 0


def test_methods_with_the_norm_of_egds_step_have_egds_grid() -> None:
    plan = load_plan(Path("spectrum"))
    own, rescaled = plan["spectrum"].methods, plan["spectrum-rescaled"].methods
    egd, alike = own["power-100"], [*rescaled.values(), own["random"], own["half"], own["reversed"]]
    assert all((each.lr, each.decay) == (egd.lr, egd.decay) for each in alike)


def test_an_experiment_is_found_in_the_folder_of_its_plan(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "parity-2"\n')
    (tmp_path / "plan.toml").write_text(OWN.replace('"parity-2"', '"own.toml"'))
    assert load_plan(tmp_path / "plan.toml")["mine"].experiment == str(tmp_path / "own.toml")


def test_a_name_that_the_plan_lacks_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"FAMILY must be one of the plan's, got 'adition'; did you mean 'addition'"):
        chosen(PLAN, "adition")
    with pytest.raises(
        SpecError, match=r"--method must be one that family 'addition' tunes, got 'egd-sdg'; did you mean 'egd-sgd'"
    ):
        PLAN["addition"].only(("egd-sdg",))
    with pytest.raises(SpecError, match="must be a TOML file, got one that cannot be read"):
        load_plan(Path("nowhere.toml"))
    with pytest.raises(SpecError, match="or name a plan of the lab: spectrum"):
        load_plan(Path("spectra"))
