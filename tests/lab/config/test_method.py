"""Settings of a method that do not go together are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from egalitarian.lab.config import catalog
from egalitarian.lab.config.method import Method, Optim, TransformSettings
from egalitarian.lab.config.schema import SpecError, everything, meaning, read

FORM = re.compile(r"\S.* must .+, got .+; \S.*")
"""<what> must be <rule>, got <value>; <way out>."""


def message(make: Callable[[], Any]) -> str:
    with pytest.raises(SpecError) as caught:
        make()
    text = str(caught.value)
    assert FORM.fullmatch(text), text
    return text


BETWEEN: dict[str, tuple[dict[str, Any], str]] = {
    "muon everywhere": ({"optim": {"optimizer": "muon"}}, "optim.optimizer must work for every parameter, got 'muon'"),
    "muon and a transform": (
        {"hidden": {"optimizer": "muon"}, "transform": [{"name": "polar"}]},
        "transform must be empty with muon",
    ),
    "adam decoupled": ({"optim": {"optimizer": "adam", "weight_decay": 1.0}, "decay": "decoupled"}, "or use adamw"),
    "sgd with momentum decoupled": (
        {"optim": {"momentum": 0.9, "weight_decay": 1.0}, "decay": "decoupled"},
        "decay must be 'after' or 'before' for sgd with momentum",
    ),
    "adamw after": (
        {"optim": {"optimizer": "adamw", "weight_decay": 1.0}, "decay": "after"},
        "decay must be 'decoupled' with adamw, got 'after'",
    ),
    "adamw before": (
        {"optim": {"optimizer": "adamw", "weight_decay": 1.0}},
        "decay must be 'decoupled' with adamw, got 'before'",
    ),
    "lion after": (
        {"optim": {"optimizer": "lion", "weight_decay": 1.0}, "decay": "after"},
        "decay must be 'decoupled' with lion, got 'after'",
    ),
    "momentum of lion": ({"optim": {"optimizer": "lion", "momentum": 0.9}}, "momentum must be 0 for lion, got 0.9"),
    "a filter on all parameters and two optimizers": (
        {
            "optim": {"optimizer": "adamw"},
            "hidden": {"optimizer": "sgd"},
            "transform": [{"name": "momentum"}, {"name": "polar"}],
        },
        "hidden.optimizer must be 'adamw' with a filter on all parameters (momentum, grokfast), got 'sgd'; use one "
        "optimizer, or set the filter's on = 'targets'",
    ),
    "rows clipped to nothing": ({"clip": 0.0}, "clip must be > 0 and <= 1e+30, got 0"),
    "decay that orthograd removes": (
        {"optim": {"weight_decay": 0.1}, "orthograd": True},
        "decay must be 'after' or 'decoupled' with orthograd, got 'before'",
    ),
    "a switch-off of nothing": ({"until": 0.95}, "until must be absent without a transform, got 0.95"),
    "momentum of adam": ({"optim": {"optimizer": "adam", "momentum": 0.9}}, "momentum must be 0 for adam, got 0.9"),
    "three betas": ({"optim": {"betas": [0.9, 0.9, 0.9]}}, "betas must be two numbers, got [0.9, 0.9, 0.9]"),
    "an lr beyond float32": ({"optim": {"lr": 1e308}}, "optim.lr must be at most 1e+30, got 1e+308; lower it"),
    "a decay beyond float32": ({"optim": {"weight_decay": 1e31}}, "optim.weight_decay must be at most 1e+30, got 1e+31"),
    "lr and decay beyond float32": (
        {"optim": {"lr": 1e20, "weight_decay": 1e20}},
        "optim.lr * weight_decay must be at most 1e+30, got 1e+40",
    ),
    "a transform beyond float32": (
        {"transform": [{"name": "grokfast-ma", "window": 2, "lamb": 1e39}]},
        "transform.0.lamb must be at most 1e+30, got 1e+39",
    ),
    "nesterov without momentum": ({"optim": {"nesterov": True}}, "nesterov must be false without momentum, got true"),
    "nesterov of rmsprop": (
        {"optim": {"optimizer": "rmsprop", "momentum": 0.9, "nesterov": True}},
        "nesterov must be false for rmsprop, got true",
    ),
}


@pytest.mark.parametrize(("values", "expected"), BETWEEN.values(), ids=BETWEEN)
def test_settings_that_do_not_go_together_are_an_error(values: dict[str, Any], expected: str) -> None:
    table = {"title": "t", "epochs": 1, "optim": {}, **values}
    assert expected in message(lambda: read(Method, table, "methods.mine"))


# defaults that depend on the optimizer


def test_betas_are_the_optimizers_own_unless_they_are_given() -> None:
    assert Optim(optimizer="lion").betas == (0.9, 0.99)
    assert Optim(optimizer="adam").betas == Optim().betas == (0.9, 0.999)
    assert Optim(optimizer="lion", betas=(0.9, 0.999)).betas == (0.9, 0.999)


def test_default_betas_follow_the_optimizer_and_given_ones_stay() -> None:
    assert Optim(optimizer="adam").replace(optimizer="lion").betas == (0.9, 0.99)
    assert Optim(optimizer="lion").replace(lr=0.5).betas == (0.9, 0.99)
    given = Optim(optimizer="adam", betas=(0.9, 0.98))
    assert given.replace(optimizer="lion").betas == (0.9, 0.98)
    assert given.replace(optimizer="lion", betas=None).betas == (0.9, 0.99)


def test_default_betas_are_in_a_spec_and_in_no_id() -> None:
    for optimizer, betas in (("lion", [0.9, 0.99]), ("adamw", [0.9, 0.999])):
        given = read(Optim, {"optimizer": optimizer, "betas": betas})
        assert given == Optim(optimizer=optimizer)  # type: ignore[arg-type]
        assert everything(given)["betas"] == betas
        assert meaning(given) == {"optimizer": optimizer}
    assert meaning(Optim(optimizer="lion", betas=(0.9, 0.999)))["betas"] == [0.9, 0.999]


def test_a_file_that_says_nothing_of_betas_has_each_optimizers_own() -> None:
    changes = ["optim.optimizer=adam", "hidden.optimizer=lion", "hidden.weight_decay=0"]
    method = catalog.load("addition-97", changes, ["sgd"]).method("sgd")
    assert method.hidden is not None
    assert (method.optim.betas, method.hidden.betas) == ((0.9, 0.999), (0.9, 0.99))


# the range of a filter, and clipping


def test_a_filter_is_on_all_parameters_unless_it_is_said_and_only_then_in_the_id() -> None:
    for name, settings in (("momentum", {}), ("grokfast-ema", {"alpha": 0.9, "lamb": 1.0})):
        links = [{"name": name, **settings}, {"name": name, **settings, "on": "all"}]
        plain, said = (read(TransformSettings, link) for link in links)
        assert plain == said
        assert meaning(plain).get("on") is None
        assert meaning(read(TransformSettings, {**links[0], "on": "targets"}))["on"] == "targets"


def test_two_optimizers_may_have_a_filter_on_the_targets() -> None:
    chain = [{"name": "momentum", "on": "targets"}, {"name": "polar"}]
    table = {"title": "t", "epochs": 1, "optim": {"optimizer": "adamw"}, "hidden": {"optimizer": "sgd"}}
    assert read(Method, {**table, "transform": chain, "decay": "decoupled"}).hidden == Optim()


def test_clipping_is_set_in_every_chosen_method_and_is_another_run() -> None:
    plain, clipped = (catalog.load("addition-97", changes, ["sgd"]).method("sgd") for changes in ([], ["clip=2"]))
    assert (plain.clip, clipped.clip) == (None, 2.0)
    assert "clip" not in meaning(plain)
    assert meaning(clipped)["clip"] == 2.0


def test_orthograd_is_another_run() -> None:
    plain, without = (
        catalog.load("addition-97", more, ["sgd"]).method("sgd") for more in ([], ["orthograd=true", "decay=after"])
    )
    assert (plain.orthograd, without.orthograd) == (False, True)
    assert "orthograd" not in meaning(plain)
