"""The one loop: every experiment and method goes through it, its records are right, and it can start at any epoch."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
import torch
from small import CPU, DOUBLE, State, distance, groks, parameters, records, same, small, together
from torch import nn

import egalitarian as eg
from egalitarian.lab.config import SKETCH, SpecError, catalog, decode
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.loop import train
from egalitarian.lab.training.stepper import Stepper

NUMBERS = {
    *("train_loss", "train_accuracy", "test_loss", "test_accuracy", "weight_norm", "distance"),
    *("sigma_max", "sigma_min", "rank", "effective_rank"),
}


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("name", catalog.names())
def test_every_method_of_every_experiment_runs(name: str) -> None:
    experiment = small(name)
    for method in experiment.methods:
        for epoch in islice(train(*together(experiment, method, [0, 1])), 2):
            assert len(epoch.records) == 2
            for own in epoch.records:
                record, snapshot = own
                held_out = {"validation_accuracy"} if experiment.training.validation else set()
                assert record.keys() == {"epoch", "active", *NUMBERS, *held_out}
                assert all(math.isfinite(record[key]) for key in NUMBERS), (method, record)
                assert record["active"] is bool(experiment.method(method).transform)
                assert snapshot["epoch"] == record["epoch"] == epoch.number


def test_records_are_what_one_measures_directly() -> None:
    experiment = small("addition-97", DOUBLE)
    ensemble, stepper = together(experiment, "egd", [4, 5])
    epochs = list(islice(train(ensemble, stepper), 3))
    record, snapshot = epochs[-1].records[1]
    weights = parameters(ensemble)[1]
    start = {name: tensor[1] for name, tensor in ensemble.start.items()}
    data = experiment.task.build(5)
    for part, split in (("train", data.train), ("test", data.test)):
        outputs = experiment.model.one(weights, split.inputs)
        assert record[f"{part}_loss"] == pytest.approx(float(nn.functional.cross_entropy(outputs, split.labels)), rel=1e-12)
        assert record[f"{part}_accuracy"] == float((outputs.argmax(-1) == split.labels).double().mean())
    squares = sum(float(tensor.square().sum()) for tensor in weights.values())
    away = sum(float((tensor - start[name]).square().sum()) for name, tensor in weights.items())
    assert record["weight_norm"] == pytest.approx(math.sqrt(squares), rel=1e-12)
    assert record["distance"] == pytest.approx(math.sqrt(away), rel=1e-12)
    sketch = np.asarray(decode(snapshot["snapshot"]["displacement"]))
    assert sketch.shape == (SKETCH,)
    assert float((sketch.astype("f8") ** 2).sum()) == pytest.approx(away, rel=5 * math.sqrt(2 / SKETCH))


def test_the_spectrum_is_that_of_an_epochs_first_gradient_with_its_decay() -> None:
    experiment = small("addition-97", DOUBLE, "optim.weight_decay=0.01")
    ensemble, stepper = together(experiment, "sgd", [0, 1])
    probe, other = together(experiment, "sgd", [0, 1])
    probe.backward(probe.epoch(0)[0])
    other.add_decay()
    expected = eg.spectrum(other.gradient.clone()).values
    (epoch,) = islice(train(ensemble, stepper), 1)
    for index, (record, snapshot) in enumerate(epoch.records):
        own = expected[index]
        found = torch.tensor(snapshot["snapshot"]["singular_values"], dtype=torch.float64)
        torch.testing.assert_close(found, own, rtol=1e-5, atol=1e-7)  # written with six digits
        assert record["sigma_max"] == pytest.approx(float(own[0]), rel=1e-6)
        assert record["sigma_min"] == pytest.approx(float(own[-1]), rel=1e-4)
        assert record["rank"] == 14


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("drop_last", ["true", "false"])
def test_accuracy_during_an_epoch_is_that_of_every_batch_before_its_step(drop_last: str, passes: int) -> None:
    changes = (DOUBLE, "training.batch=10", f"training.drop_last={drop_last}", f"training.passes={passes}")
    during = small("addition-97", *changes, "training.accuracy=during")
    epochs = list(islice(train(*together(during, "egd", [4, 5, 6])), 3))
    ensemble, stepper = together(small("addition-97", *changes), "egd", [4, 5, 6])
    for epoch in epochs:
        losses, rightly, points = torch.zeros(3, dtype=torch.float64), torch.zeros(3), 0
        for batch in ensemble.epoch(epoch.number):
            outputs = ensemble.forward(batch.inputs).detach()
            losses += ensemble.loss(outputs, batch.labels) * batch.labels.shape[1]
            rightly += (outputs.argmax(-1) == batch.labels).sum(1)
            points += batch.labels.shape[1]
            ensemble.backward(batch)
            stepper.add_decay()
            stepper.step()
        for index, (record, *_) in enumerate(epoch.records):
            assert record["train_accuracy"] == float(rightly[index]) / points
            assert record["train_loss"] == pytest.approx(float(losses[index]) / points, rel=1e-12)


def test_when_accuracy_is_read_changes_nothing_else() -> None:
    def tested(when: str) -> list[list[float]]:
        experiment = small("addition-97", f"training.accuracy={when}")
        epochs = islice(train(*together(experiment, "egd", [0, 1])), 3)
        return [[own[0]["test_loss"] for own in epoch.records] for epoch in epochs]

    assert tested("during") == tested("after")


def test_measuring_changes_nothing() -> None:
    experiment = small()
    ensemble, stepper = together(experiment, "egd", [0, 1])
    list(islice(train(ensemble, stepper), 3))
    bare, other = together(experiment, "egd", [0, 1])
    for epoch in range(3):
        for batch in bare.epoch(epoch):
            bare.backward(batch)
            other.add_decay()
            other.step()
    assert all(same(one, two) for one, two in zip(parameters(ensemble), parameters(bare), strict=True))


def test_snapshots_come_ten_per_decade() -> None:
    epochs = list(islice(train(*together(small(), "sgd", [0])), 12))
    assert [epoch.number for epoch in epochs if len(epoch.records[0]) == 2] == [0, 1, 2, 3, 4, 5, 6, 8, 10]


def test_the_clock_counts_training_and_measuring_apart() -> None:
    for epoch in islice(train(*together(small(), "egd", [0])), 3):
        assert epoch.training_seconds > 0
        assert epoch.measuring_seconds > 0


def test_epochs_may_begin_anywhere() -> None:
    """The batches are those of the epoch's number, not of how many were trained."""
    ensemble, stepper = together(small(), "sgd", [0])
    one, two = islice(train(ensemble, stepper), 2)
    other, fresh = together(small(), "sgd", [0])
    (first,) = islice(train(other, fresh), 1)
    (second,) = islice(train(other, fresh, first=1), 1)
    assert (first.records, second.records) == (one.records, two.records)
    assert second.number == 1


# shuffles


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("first", [0, 4, 5, 6])
def test_optimizers_start_again_where_labels_change_and_nowhere_else(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shuffles in twenty epochs. A run that resumes in the middle of an era keeps its state."""
    reset: list[int] = []
    monkeypatch.setattr(Stepper, "reset", lambda self: reset.append(self.count // 3))
    for name, expected in (("cifar-reset", [5, 10, 15]), ("cifar-shuffle-3", [])):
        ensemble, stepper = together(small(name), "adam", [0])
        stepper.count = 3 * first  # three steps in an epoch
        list(islice(train(ensemble, stepper, first), 20 - first))
        assert reset == [epoch for epoch in expected if epoch >= first]
        reset.clear()


def test_a_memory_of_transforms_is_not_reset() -> None:
    with pytest.raises(
        SpecError, match=r"training\.reset must be false where a transform keeps a memory, got true for grokfast-ema"
    ):
        small("addition-97", "training.reset=true", methods=("grokfast-ema",))


# the switch-off


def crossings(own: list[dict[str, float]], until: float) -> int:
    return next(record["epoch"] for record in own if record["test_accuracy"] > until)


SEEDS, UNTIL, EPOCHS = [6, 1, 7, 0], 0.9, 20


def test_each_seed_is_switched_off_after_its_own_crossing() -> None:
    found = records(groks(DOUBLE), "egd", SEEDS, EPOCHS)
    epochs = [crossings(own, UNTIL) for own in found]
    assert len(set(epochs)) == 4  # or there would be less to see
    for own, crossing in zip(found, epochs, strict=True):
        assert [record["active"] for record in own] == [epoch <= crossing for epoch in range(EPOCHS)]


def test_a_seed_that_is_switched_off_goes_on_as_plain_sgd() -> None:
    experiment = groks(DOUBLE)
    ensemble, stepper = together(experiment, "egd", SEEDS)
    at_crossing: dict[int, tuple[int, State]] = {}
    for epoch in train(ensemble, stepper):
        now = parameters(ensemble)
        for index, (record, *_) in enumerate(epoch.records):
            if record["test_accuracy"] > UNTIL and index not in at_crossing:
                at_crossing[index] = epoch.number, now[index]
        if epoch.number == EPOCHS - 1:
            break
    assert set(at_crossing) == set(range(len(SEEDS)))
    for index, (crossing, state) in at_crossing.items():
        alone = Ensemble(experiment, [SEEDS[index]], CPU)
        with torch.no_grad():
            for name, tensor in alone.parameters.items():
                tensor[0].copy_(state[name])
        plain = Stepper(experiment.method("egd").replace(transform=(), until=None), alone.parameters)
        list(islice(train(alone, plain, first=crossing + 1), EPOCHS - 1 - crossing))
        # nothing magnifies rounding in plain SGD but its own steps, of which there are at most 80
        assert distance(parameters(ensemble)[index], parameters(alone)[0]) < 1e-11


def test_without_until_nothing_is_switched_off() -> None:
    experiment = groks()
    never = experiment.replace(methods={"egd": experiment.method("egd").replace(until=None)})
    found = records(never, "egd", SEEDS, EPOCHS)
    assert all(any(record["test_accuracy"] > UNTIL for record in own) for own in found)
    assert all(record["active"] for own in found for record in own)
