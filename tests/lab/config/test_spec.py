"""A run's id is what its settings mean: equal for the same mathematics, different for other."""

from __future__ import annotations

import json
import re

import pytest
from small import small

from egalitarian.lab.config import SpecError, catalog, spec
from egalitarian.lab.config.spec import Run


def run_id(*changes: str, name: str = "addition-97", method: str = "egd", seed: int = 0, device: str = "cpu") -> str:
    return Run(catalog.load(name, changes, [method]), method, seed, device).id


def test_ids_are_what_they_were() -> None:
    """Stored runs are found by them. If this must change, raise `spec.VERSION` and say so in the changelog."""
    assert run_id() == "53201e4cbd4c"
    assert run_id(name="parity-3", method="sgd", seed=5) == "20567e772c37"


@pytest.mark.parametrize(
    "change",
    [
        "epochs=7",
        "measure.threshold=0.5",
        "measure.past=50",
        "measure.fourier=snapshots",
        "measure.key_frequencies=3",
        "title_of_method",
        "by_default=false",
        "task.train_fraction=0.5",
        "training.drop_last=true",
        "training.precision=float32",
        "model.scale=1",
        "model.bias=zeros",
        "optim.optimizer=sgd",
        "optim.momentum=0",
        "decay=before",
        'targets=["hidden.weight"]',
        "optim.betas=[0.9, 0.999]",
    ],
)
def test_an_id_is_the_same_for_the_same_mathematics(change: str) -> None:
    if change in ("title_of_method", "by_default=false"):  # not to be had by a change
        experiment = catalog.load("addition-97")
        field = {"title": "another"} if change == "title_of_method" else {"by_default": False}
        method = experiment.method("egd").replace(**field)
        changed = Run(experiment.replace(methods={"egd": method}), "egd", 0, "cpu").id
    else:
        changed = run_id(change)
    assert changed == run_id()


def test_a_negative_zero_is_zero() -> None:
    assert run_id("optim.betas=[-0.0, 0.99]") == run_id("optim.betas=[0, 0.99]") != run_id()


def test_an_id_does_not_depend_on_names() -> None:
    experiment = catalog.load("addition-97")
    renamed = experiment.replace(
        name="mine", title="Mine", about="", methods={"other": experiment.method("egd")}, claims={}
    )
    assert Run(renamed.replace(sources={}), "other", 0, "cpu").id == run_id()
    assert Run(experiment.replace(methods={"egd": experiment.method("egd")}), "egd", 0, "cpu").id == run_id()


@pytest.mark.parametrize(
    "change",
    [
        "optim.lr=0.70001",
        "optim.weight_decay=0",
        "optim.optimizer=rmsprop",
        "hidden.weight_decay=0.03",
        "task.modulus=79",
        "task.operation=-",
        "task.train_fraction=0.4",
        "model.width=511",
        "model.scale=2",
        "model.weights=torch",
        "training.precision=float64",
        "training.batch=256",
        "training.loss=hinge",
        "training.drop_last=false",
        "decay=after",
        "until=0.96",
        'transform=[{name="lowrank-polar",rank=64}]',
        'transform=[{name="lowrank-polar",rank=65}]',
        'transform=[{name="polar"},{name="momentum"}]',
        'transform=[{name="polar",precision="fast"}]',
        'targets=["output.weight"]',
    ],
)
def test_an_id_is_another_for_other_mathematics(change: str) -> None:
    assert run_id(change) != run_id()


def test_ids_differ_by_rank_seed_version_and_method(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [
        run_id(),
        run_id(seed=1),
        *(run_id(method=name) for name in catalog.load("addition-97").methods if name != "egd"),
    ]
    assert len(set(ids)) == len(ids)
    monkeypatch.setattr(spec, "VERSION", spec.VERSION + 1)
    assert run_id() not in ids


def test_what_is_described_is_the_run() -> None:
    run = Run(small(), "egd", 3, "cpu")
    said = json.loads(json.dumps(run.describe()))
    assert (said["id"], said["version"], said["seed"]) == (run.id, spec.VERSION, 3)
    assert (said["experiment"], said["method"]) == ("addition-97", "egd")
    assert said["task"]["modulus"] == 7
    assert said["settings"]["optim"]["lr"] == run.method.optim.lr
    assert said["settings"]["transform"] == [{"name": "polar", "precision": "exact"}]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("parity-2", (), "measure.fourier must be 'off' for task 'parity' as it is set, got 'snapshots'; waves need "),
        ("mnist", (), "measure.fourier must be 'off' for task 'mnist' as it is set, got 'snapshots'; waves need "),
        ("multiplication-97", ("task.modulus=96",), "measure.fourier must be 'off' for task 'modular' as it is set, got "),
        ("multiplication-97", ("task.modulus=2",), "measure.fourier must be 'off' for task 'modular' as it is set, got "),
        ("addition-97", ("task.modulus=257",), "measure.fourier must be 'off' for more than 256 numbers, got 257; lower "),
        ("addition-97", ("task.modulus=9",), "measure.key_frequencies must be at most 4, got 5; a group of 9 has no more "),
        ("multiplication-97", ("task.modulus=3",), "measure.key_frequencies must be at most 1, got 5; a group of 2 has "),
    ],
)
def test_fourier_measures_are_refused_where_they_have_no_meaning(name: str, changes: tuple[str, ...], said: str) -> None:
    catalog.load(name, changes)
    with pytest.raises(SpecError, match=re.escape(said)):
        catalog.load(name, [*changes, "measure.fourier=snapshots"])
