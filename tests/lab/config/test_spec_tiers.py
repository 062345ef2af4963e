"""The tier of the polar factor in a run's id: `auto` is resolved by the type of the device, and other methods have none."""

from __future__ import annotations

import pytest

from egalitarian.lab.config import (
    DEVICES,
    OLD_VERSION,
    VERSION,
    MomentumSettings,
    PolarSettings,
    SpecError,
    catalog,
    either,
)
from egalitarian.lab.config.method import Tier, auto_tier
from egalitarian.lab.config.spec import Run

DOUBLE = "training.precision=float64"


def run(device: str, *changes: str, method: str = "egd") -> Run:
    return Run(catalog.load("addition-97", changes, [method]), method, 0, device)


def precision(tier: str) -> str:
    return f"transform.0.precision={tier}"


@pytest.mark.parametrize(
    ("device", "precision", "tier"),
    [("cuda", "float32", "fast"), ("cuda", "float64", "exact"), ("cpu", "float32", "exact"), ("cpu", "float64", "exact")],
)
def test_auto_is_fast_in_float32_on_a_gpu_and_what_is_asked_for_stays(device: str, precision: str, tier: Tier) -> None:
    asked = [PolarSettings(precision="exact"), PolarSettings(precision="fast"), PolarSettings(precision="coarse")]
    chain = (MomentumSettings(), PolarSettings(), *asked)
    method = catalog.load("addition-97").method("egd").replace(transform=chain)
    found = method.with_tier(auto_tier(device, precision))
    assert found.transform == (chain[0], PolarSettings(precision=tier), *asked)
    assert found == method.replace(transform=found.transform)


def test_the_id_of_auto_is_that_of_the_tier_it_means_on_the_device() -> None:
    assert run("cpu").id == run("cpu", precision("exact")).id
    assert run("cuda").id == run("cuda", precision("fast")).id
    assert run("cpu").id != run("cuda").id
    assert run("cpu", DOUBLE).id == run("cuda", DOUBLE).id == run("cuda", DOUBLE, precision("exact")).id


@pytest.mark.parametrize("tier", ["exact", "fast", "coarse"])
def test_a_tier_that_is_asked_for_is_the_same_run_on_every_device(tier: str) -> None:
    assert run("cpu", precision(tier)).id == run("cuda", precision(tier)).id == run("", precision(tier)).id


def test_the_settings_of_a_run_have_its_tier() -> None:
    for device, tier in (("cpu", "exact"), ("cuda", "fast")):
        said = run(device).describe()
        assert said["settings"]["transform"] == [{"name": "polar", "precision": tier}]
        assert said["version"] == VERSION
        assert said["id"] == run(device).id


def test_a_method_without_a_polar_factor_or_muon_is_one_run_and_keeps_its_version() -> None:
    experiment = catalog.load("addition-97")
    for method in ("sgd", "egd-rsvd-64", "row-norm", "natural", "grokfast-ema"):
        (only,) = either(experiment, method, 3)
        assert {Run(experiment, method, 3, device).id for device in ("", *DEVICES)} == {only.id}
        assert (only.version, only.before) == (OLD_VERSION, None)
    assert Run(experiment, "sgd", 0).id == "a8fd777d915d"


def test_muon_is_one_run_on_every_device_and_another_than_that_of_version_1() -> None:
    """Version 1 had `torch.optim.Muon` for every seed, whose products are other calls than those of all seeds."""
    experiment = catalog.load("addition-97")
    (only,) = either(experiment, "muon", 3)
    assert {Run(experiment, "muon", 3, device).id for device in ("", *DEVICES)} == {only.id}
    assert only.version == VERSION
    assert only.before is not None
    assert (only.before.version, only.before.before) == (OLD_VERSION, None)
    assert only.before.id != only.id


def test_either_has_a_run_for_each_tier() -> None:
    assert [each.id for each in either(catalog.load("addition-97"), "egd", 0)] == [run("cpu").id, run("cuda").id]
    assert len(either(catalog.load("addition-97", [DOUBLE]), "egd", 0)) == 1
    assert len(either(catalog.load("parity-3"), "egd", 0)) == 1  # it asks for exact


def test_the_run_of_version_1_has_the_id_that_version_1_gave_it() -> None:
    for device in DEVICES:
        before = run(device).before
        assert before is not None
        assert before.id == "18502e1fbb58"
        assert before.describe()["version"] == OLD_VERSION
        assert before.describe()["settings"]["transform"] == [{"name": "polar", "precision": "auto"}]
        assert before.before is None


def test_auto_needs_a_device() -> None:
    with pytest.raises(SpecError, match=r"device must be given where .* has precision 'auto', got none for egd"):
        run("")
    with pytest.raises(SpecError, match="device must be one of cpu, cuda, got 'cuda:1'; leave out its number"):
        run("cuda:1")
