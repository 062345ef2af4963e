"""Changes by dotted key, and files that build on others: what is merged, replaced, kept and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from refused import message, write

from egalitarian.lab import config
from egalitarian.lab.config import catalog, changed_values, merging
from egalitarian.lab.config.method import Method
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.runs import Request


def test_changes_reach_the_experiment_and_the_methods() -> None:
    experiment = catalog.load(
        "addition-97", ["task.modulus=31", "measure.threshold = 0.5", "training.loss=hinge", "optim.lr=2"]
    )
    assert (experiment.task.modulus, experiment.measure.threshold, experiment.training.loss) == (31, 0.5, "hinge")
    assert {method.optim.lr for method in experiment.methods.values()} == {2.0}
    assert experiment.method("egd-after").hidden.lr == 2.0  # takes from optim what it does not set
    assert experiment.method("muon").hidden.lr == 0.3


def test_changes_reach_only_the_methods_chosen() -> None:
    experiment, paper = catalog.load("addition-97", ["optim.lr=2", "epochs=7"], ["egd"]), catalog.load("addition-97")
    assert (experiment.method("egd").optim.lr, experiment.method("egd").epochs) == (2.0, 7)
    assert {name for name in paper.methods if experiment.method(name) != paper.method(name)} == {"egd"}


def test_changes_reach_into_a_chain() -> None:
    experiment = catalog.load("addition-97", ["transform.0.rank=3"], ["egd-rsvd-64"])
    assert experiment.method("egd-rsvd-64").transform == (config.LowRankPolarSettings(rank=3),)
    assert catalog.load("addition-97").method("egd-rsvd-64").transform == (config.LowRankPolarSettings(rank=64),)
    whole = catalog.load("addition-97", ['transform=[{name="momentum"},{name="polar"}]'], ["egd"])
    assert whole.method("egd").transform == (config.MomentumSettings(), config.PolarSettings())


@pytest.mark.parametrize("place", ["groups", "methods.egd.groups"])
def test_a_change_reaches_a_group_whose_module_has_dots_in_its_name(place: str) -> None:
    groups = catalog.load("transformer", [f"{place}.blocks.0.lr=2", f"{place}.output.lr=3"], ["egd"]).method("egd").groups
    assert {module: own.lr for module, own in groups.items()} == {"blocks.0": 2.0, "output": 3.0}


@pytest.mark.parametrize(
    ("changes", "of", "others", "own"),
    [
        (["optim={lr=0.5}", "methods.egd.optim.lr=2"], lambda method: method.optim.lr, 0.5, 2.0),
        (
            ['transform=[{name="polar"}]', "methods.egd.transform.0.precision=fast"],
            lambda method: method.transform,
            (config.PolarSettings(),),
            (config.PolarSettings(precision="fast"),),
        ),
    ],
)
def test_a_change_into_a_changed_table_reaches_one_method(
    changes: list[str], of: Callable[[Method], Any], others: Any, own: Any
) -> None:
    values = changed_values(changes)
    request = Request("addition-97", "egd", (0,), "cpu", 1, Path("runs"), values=values)
    both = ["sgd", "egd"]
    for experiment in (
        catalog.load("addition-97", changes, both),
        catalog.load("addition-97", methods=both, values=values),
    ):
        assert of(experiment.method("sgd")) == others
        assert of(experiment.method("egd")) == own
    assert of(request.loaded.method("egd")) == own
    assert request.values == changed_values(changes), "loading changes no value of the request"


@pytest.mark.parametrize(
    "changes",
    [
        ["optim=5", "optim.lr=1", "optim={lr=2}"],
        ["transform=[{name='polar'}]", "transform.0.precision=fast", "transform=[{name='polar'}]"],
        ["hidden={lr=1}", "hidden.lr=2", "hidden={lr=3}"],
    ],
)
def test_a_repeated_change_means_the_same_in_every_process(changes: list[str]) -> None:
    def outcome(*arguments: Any, **more: Any) -> Any:
        try:
            return catalog.load("addition-97", *arguments, methods=["sgd"], **more).method("sgd")
        except SpecError as error:
            return str(error)

    assert outcome(changes) == outcome(values=changed_values(changes))


def test_a_claim_about_no_method_is_refused(tmp_path: Path) -> None:
    text = 'extends = "addition-97"\n[claims.egdd]\ntable = "mine"\nepochs = 3\n'
    said = message(write(tmp_path / "mine.toml", text))
    assert "claims must be about methods of the experiment, got 'egdd' in" in said
    assert said.endswith("; did you mean 'egd'?")


def test_a_change_of_a_table_covers_the_sources_below_it() -> None:
    table = {"sources": {"a.b": "paper", "a.bc": "paper", "a.b.c": "paper", "a.b.c.d": "paper"}}
    merging.mark_changed(table, [("a", "b")], "mine")
    assert table["sources"] == {"a.b": "mine", "a.bc": "paper"}


def test_many_unknown_keys_are_refused_at_once(tmp_path: Path) -> None:
    """By the square of their number it was: a minute for these."""
    keys = "".join(f"key{number} = 1\n" for number in range(20_000))
    assert "task.key0 must be a known setting" in message(
        write(tmp_path / "many.toml", f'extends = "addition-97"\n[task]\n{keys}')
    )


def test_a_value_is_one_value() -> None:
    assert merging.parse_change("optim.betas=[0.5,\n0.9] # two lines") == ("optim.betas", [0.5, 0.9])
    for change in ("optim.lr=1\nx=2", "optim.lr=1\n[x]", "optim={lr=1}\nx.y=2"):
        key, _, text = change.partition("=")
        assert message("addition-97", [change]).startswith(f"--set {key} must be one value, got {text!r}; repeat --set")


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "9" * 400, "-" + "9" * 400])
def test_a_number_that_is_too_long_is_named(number: str, tmp_path: Path) -> None:
    assert "training.warmup must" in message("addition-97", [f"training.warmup={number}"])
    assert "mine" in message(write(tmp_path / "mine.toml", f'extends = "addition-97"\ntraining.warmup = {number}\n'))


def test_every_setting_of_a_method_can_be_changed_in_several() -> None:
    """All but its title, which is its own, and whether it is one of the usual."""
    assert set(merging.PARTS_OF_METHODS) == {item.name for item in fields(Method)} - {"title", "by_default"}


def test_a_method_without_hidden_gets_one_over_its_optim() -> None:
    experiment = catalog.load("addition-97", ["hidden.weight_decay=0.03", "decay=after"], ["egd"])
    egd = experiment.method("egd")
    assert egd.hidden == egd.optim.replace(weight_decay=0.03)


WRONG_CHANGES = {
    "tsak.modulus=31": "did you mean 'task'?",
    "methods=3": "--set must lead to a setting of a method, got 'methods'; for example methods.egd.optim.lr=0.5",
    "methods.egd=3": "--set must lead to a setting of a method, got 'methods.egd'",
    "title=mine": "--set must begin with a part of an experiment, got 'title'",
    "task.modulus": "--set must be key=value, got 'task.modulus'",
    "=3": "--set must be key=value, got '=3'",
    "task.modulos=31": "task.modulos must be a known setting, got 'modulos'; did you mean 'modulus'?",
    "task.modulus=thirty": "task.modulus must be an integer, got 'thirty'",
    "task.modulus=1": "task.modulus must be >= 2, got 1",
    "task=5": "task must be a table, got 5",
    "task.name=parity": "must be a known setting",
    "task.modulus.x=3": "task.modulus.x must lead to a setting, got a value before its end",
    "task.modulus.x.y=3": "task.modulus.x.y must lead to a setting, got a value before its end",
    "transform.9.rank=3": "transform.9.rank must lead to a setting, got nothing at '9'",
    "transform.x.rank=3": "transform.x.rank must lead to a setting, got nothing at 'x'",
    "transform=polar": "transform must be a list of Transforms, got 'polar'",
    "optim=3": "optim must be a table, got 3",
    "optim.lr=fast": "optim.lr must be a finite number, got 'fast'",
    "hidden=3": "hidden must be a table, got 3",
    "training.loss=hing": "did you mean 'hinge'?",
}


@pytest.mark.parametrize("change", WRONG_CHANGES)
def test_a_wrong_change_is_an_error_that_names_it(change: str) -> None:
    assert WRONG_CHANGES[change] in message("addition-97", [change], ["egd-rsvd-64"])


def test_a_users_file_builds_on_the_papers(tmp_path: Path) -> None:
    name = write(
        tmp_path / "mine.toml",
        'extends = "addition-97"\ntitle = "Mine"\n[task]\nmodulus = 11\n[methods.egd]\noptim = { lr = 3 }\n',
    )
    mine, paper = catalog.load(name), catalog.load("addition-97")
    assert (mine.name, mine.title, mine.task) == ("mine", "Mine", paper.task.replace(modulus=11))
    assert mine.method("egd") == paper.method("egd").replace(optim=paper.method("egd").optim.replace(lr=3.0))
    assert mine.method("sgd") == paper.method("sgd")


def test_a_users_file_builds_on_another_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'extends = "addition-97"\n[task]\nmodulus = 11\n')
    name = write(tmp_path / "mine.toml", 'extends = "base.toml"\ntitle = "Mine"\n')
    assert catalog.load(name).task.modulus == 11


def test_a_table_of_another_kind_replaces_the_one_below(tmp_path: Path) -> None:
    task = "name = 'parity'\nbits = 5\nsecret_bits = 2\ntrain_size = 4\ntest_size = 4"
    name = write(tmp_path / "mine.toml", f'extends = "addition-97"\n[task]\n{task}\n[training]\nloss = "hinge"\n')
    assert catalog.load(name).task.kind == "parity"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('extends = "addition-97"\nsources = 3\n', "sources must be a table, got 3"),
        ('extends = "addition-97"\nclaims = "x"\n', "claims must be a table, got 'x'"),
        ('extends = "addition-97"\nonly = [["egd"]]\n', "only must be a list of methods"),
        ('only = ["egd"]\n[task]\nname = "modular"\n', "only must come with extends"),
    ],
)
def test_parts_of_another_kind_are_told_of(tmp_path: Path, text: str, said: str) -> None:
    assert said in message(write(tmp_path / "mine.toml", text))


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_circle_of_extends_is_an_error(tmp_path: Path, length: int) -> None:
    for number in range(length):
        write(tmp_path / f"{number}.toml", f'extends = "{(number + 1) % length}.toml"\n')
    assert "extends must not lead back to the same file" in message(str(tmp_path / "0.toml"))


def test_a_users_file_takes_over_settings_and_not_claims(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "addition-97"\n[task]\nmodulus = 89\n[optim]\nlr = 2.0\n[methods.sgd]\nepochs = 7\n')
    mine = catalog.load(str(path))
    assert mine.title == "mine"
    assert not mine.claims
    assert not mine.about
    assert mine.source("task.modulus") == "mine.toml"
    assert mine.source("task.operation") == catalog.load("addition-97").source("task.operation")
    assert mine.source("methods.egd.optim.lr") == "mine.toml"
    assert mine.source("methods.sgd.epochs") == "mine.toml"


def test_a_longer_budget_leaves_the_papers_claims(tmp_path: Path) -> None:
    changes = ["epochs=9", "measure.past=0", "measure.spectra=snapshots", "measure.fourier=snapshots"]
    assert catalog.load("addition-97", changes).claims == catalog.load("addition-97").claims
    assert not catalog.load("addition-97", ["measure.threshold=0.9"]).claims


def test_a_file_may_take_over_some_methods_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "addition-97"\nonly = ["egd"]\n[methods.own]\ntitle = "own"\nepochs = 3\n')
    assert list(catalog.load(str(file)).methods) == ["egd", "own"]
    file.write_text('extends = "addition-97"\nonly = ["egdd"]\n')
    with pytest.raises(SpecError, match=r"only must .* got 'egdd' .*did you mean 'egd'"):
        catalog.load(str(file))
