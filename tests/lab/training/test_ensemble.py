"""Several seeds as one network: a seed in any batch is the seed alone."""

from __future__ import annotations

import math
from itertools import islice

import pytest
import torch
from small import CPU, DOUBLE, VARIANTS, distance, parameters, small, states, together

from egalitarian.lab.config import catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.config.spec import Experiment
from egalitarian.lab.training import ensemble
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.loop import train

ROUNDING = 1e-9
"""float64 rounds at 2e-16; U Vᵀ magnifies an error by 2 |G| / s_min, here up to 1e5, the natural gradient by its square but
at a learning rate of 1e-4; six epochs of three steps carry it on. In float32 the same would be 0.5: no test at all."""


def at_any_time(experiment: Experiment, method: str, seeds: list[int], epochs: int) -> float:
    """The distance of seeds in a batch from the same seeds alone, at the worst epoch."""
    stack = states(experiment, method, seeds, epochs)
    alone = [states(experiment, method, [seed], epochs)[0] for seed in seeds]
    pairs = zip(stack, alone, strict=True)
    return max(distance(one, other) for own, lone in pairs for one, other in zip(own, lone, strict=True))


# batches of seeds


@pytest.mark.parametrize("name", VARIANTS)
def test_a_seed_in_a_batch_is_the_seed_alone(name: str) -> None:
    """Step by step; five seeds, so that on a CPU the last is computed apart from the first four."""
    method, changes = VARIANTS[name]
    experiment = small("addition-97", DOUBLE, *changes, methods=(method,))
    assert len(range(5)) > ensemble.AT_ONCE["cpu"]
    assert at_any_time(experiment, method, [0, 1, 2, 3, 4], 6) < ROUNDING


@pytest.mark.parametrize("method", ["sgd", "egd", "egd-rsvd-30", "row-norm", "egd-after", "muon"])
@pytest.mark.parametrize("name", ["parity-3", "parity-4-hinge"])
def test_a_seed_of_a_parity_is_the_seed_alone(name: str, method: str) -> None:
    assert at_any_time(small(name, DOUBLE), method, [7, 0, 3], 4) < ROUNDING


def test_seeds_differ() -> None:
    own = states(small(), "egd", [0, 1, 2], 2)
    assert distance(own[0][-1], own[1][-1]) > 0.1
    assert distance(own[1][-1], own[2][-1]) > 0.1


def test_the_order_of_the_seeds_is_of_no_account() -> None:
    experiment = small("addition-97", DOUBLE)
    one, other = states(experiment, "egd", [0, 1, 2], 3), states(experiment, "egd", [2, 0, 1], 3)
    assert max(distance(one[seed][-1], other[index][-1]) for index, seed in enumerate([2, 0, 1])) < ROUNDING


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_gradients_do_not_depend_on_how_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    whole = small("addition-97", DOUBLE)
    expected, _ = together(whole, "sgd", [0, 1, 2, 3, 4])
    monkeypatch.setitem(ensemble.AT_ONCE, "cpu", size)
    found, _ = together(whole, "sgd", [0, 1, 2, 3, 4])
    for one in (expected, found):
        for batch in one.epoch(0):
            one.backward(batch)
    for name, parameter in found.parameters.items():
        torch.testing.assert_close(parameter.grad, expected.parameters[name].grad, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["addition-97", "parity-3"])
def test_a_gradient_is_that_of_each_networks_mean_loss(name: str) -> None:
    experiment = small(name, DOUBLE)
    stack, _ = together(experiment, "sgd", [0, 1, 2])
    batches = stack.epoch(0)
    stack.backward(batches[0])
    stack.backward(batches[1])  # nothing of the first stays
    for index in range(3):
        one = {key: tensor.detach()[index].clone().requires_grad_() for key, tensor in stack.parameters.items()}
        outputs = experiment.model.one(one, batches[1].inputs[index])
        loss = stack.loss(outputs[None], batches[1].labels[index][None]).sum()
        for key, grad in zip(one, torch.autograd.grad(loss, list(one.values())), strict=True):
            torch.testing.assert_close(stack.parameters[key].grad[index], grad, rtol=1e-12, atol=1e-14)


def test_a_seed_that_diverges_leaves_its_neighbours_as_they_would_be() -> None:
    experiment = small("addition-97", DOUBLE)
    stack, stepper = together(experiment, "egd", [0, 1, 2])
    with torch.no_grad():
        stack.parameters["output.weight"][1].mul_(math.inf)
    for epoch in train(stack, stepper):
        if epoch.number == 3:
            break
    expected = states(experiment, "egd", [0, 1, 2], 4)
    found = parameters(stack)
    assert not found[1]["output.weight"].isfinite().all()
    assert all(distance(expected[seed][-1], found[seed]) < ROUNDING for seed in (0, 2))
    assert math.isnan(epoch.records[1][0]["train_loss"])
    assert all(math.isfinite(epoch.records[seed][0]["train_loss"]) for seed in (0, 2))


@pytest.mark.parametrize("method", ["sgd", "egd", "egd-rsvd-64", "natural", "muon", "grokfast-ma", "egd-grokfast"])
def test_a_seed_that_explodes_harms_nobody_else(method: str) -> None:
    """One seed's start is thrown so far off that its loss overflows; the other trains as if alone."""
    experiment = small("addition-97", DOUBLE)
    stack, stepper = together(experiment, method, [0, 1])
    alone, own = together(experiment, method, [1])
    with torch.no_grad():
        stack.parameters["hidden.weight"][0].mul_(1e200)
        stack.parameters["output.weight"][0].mul_(1e200)
    epochs = list(islice(zip(train(stack, stepper), train(alone, own), strict=False), 3))
    assert not math.isfinite(epochs[-1][0].records[0][0]["train_loss"])
    assert math.isfinite(epochs[-1][1].records[0][0]["train_loss"])
    assert distance(parameters(alone)[0], parameters(stack)[1]) < ROUNDING


# data and batches


def test_every_seed_has_its_own_data_and_start() -> None:
    experiment = small()
    stack = Ensemble(experiment, [5, 2], CPU)
    for index, seed in enumerate((5, 2)):
        data = experiment.task.build(seed)
        assert torch.equal(stack.train.inputs[index], data.train.inputs)
        assert torch.equal(stack.test.labels[index], data.test.labels)
        for name, tensor in experiment.model.start(experiment.task, seed).items():
            assert torch.equal(stack.start[name][index], tensor)
            assert torch.equal(stack.parameters[name].detach()[index], tensor)


def test_precision_is_that_of_every_tensor_but_labels() -> None:
    for precision, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        stack = Ensemble(small("parity-3", f"training.precision={precision}"), [0], CPU)
        assert {tensor.dtype for tensor in (*stack.parameters.values(), *stack.train)} == {dtype}
        modular = Ensemble(small("addition-97", f"training.precision={precision}"), [0], CPU)
        assert {tensor.dtype for tensor in modular.train} == {torch.int64}


@pytest.mark.parametrize(("drop_last", "sizes"), [(True, [10, 10]), (False, [10, 10, 4])])
def test_an_epoch_takes_every_point_once(drop_last: bool, sizes: list[int]) -> None:
    experiment = small("addition-97", "training.batch=10", f"training.drop_last={str(drop_last).lower()}")
    stack = Ensemble(experiment, [0, 1, 2], CPU)
    batches = stack.epoch(3)
    assert [batch.labels.shape for batch in batches] == [(3, size) for size in sizes]
    assert stack.batches == len(sizes)
    for index in range(3):
        drawn = [(*pair, label) for batch in batches for pair, label in rows(batch.inputs[index], batch.labels[index])]
        points = [(*pair, label) for pair, label in rows(stack.train.inputs[index], stack.train.labels[index])]
        assert len(set(drawn)) == len(drawn) == sum(sizes)
        assert set(drawn) <= set(points)


def rows(inputs: torch.Tensor, labels: torch.Tensor) -> list[tuple[list[int], int]]:
    return list(zip(inputs.tolist(), labels.tolist(), strict=True))


def test_batches_depend_on_the_seed_and_the_epoch_alone() -> None:
    experiment = small()
    first = Ensemble(experiment, [0, 1], CPU)
    later = Ensemble(experiment, [3, 1, 0], CPU)
    later.epoch(0)
    torch.manual_seed(5)
    torch.rand(3)
    for one, other in zip(first.epoch(7), later.epoch(7), strict=True):
        assert torch.equal(one.inputs[1], other.inputs[1])
        assert torch.equal(one.labels[0], other.labels[2])
    assert not torch.equal(first.epoch(7)[0].inputs, first.epoch(8)[0].inputs)


def test_training_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    states(small(), "egd-rsvd-64", [0, 1], 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_that_is_larger_than_the_data_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"training\.batch must be at most the 24 training points, got 25; lower it"):
        Ensemble(small("addition-97", "training.batch=25"), [0], CPU)
    kept = Ensemble(small("addition-97", "training.batch=25", "training.drop_last=false"), [0], CPU)
    assert [len(batch.labels[0]) for batch in kept.epoch(0)] == [24]


def test_the_papers_sizes() -> None:
    stack = Ensemble(catalog.load("addition-97"), [0], CPU)
    assert (stack.points, stack.batches, stack.test.labels.shape[1]) == (4704, 9, 4705)
    assert {name: tuple(tensor.shape) for name, tensor in stack.parameters.items()} == {
        "hidden.weight": (1, 512, 194),
        "hidden.bias": (1, 512),
        "output.weight": (1, 97, 512),
    }


def test_passes_are_epochs_end_to_end() -> None:
    once, thrice = (Ensemble(small("addition-97", f"training.passes={n}"), [0, 4], CPU) for n in (1, 3))
    assert thrice.steps == 3 * once.steps
    for epoch in range(2):
        chosen = [batch for turn in range(3 * epoch, 3 * epoch + 3) for batch in once.choices(turn)]
        assert all(torch.equal(one, other) for one, other in zip(chosen, thrice.choices(epoch), strict=True))


def test_readings_divide_a_pass_and_change_no_weight() -> None:
    """`small` has three steps in a pass: an epoch of one step each measures the same training more often."""
    once, thrice = (small("addition-97", DOUBLE, f"training.readings={n}", methods=("sgd",)) for n in (1, 3))
    rare, often = Ensemble(once, [0, 4], CPU), Ensemble(thrice, [0, 4], CPU)
    assert (rare.steps, often.steps) == (3, 1)
    assert (once.steps_per_epoch, thrice.steps_per_epoch) == (3, 1)
    for turn in range(2):
        chosen = [batch for epoch in range(3 * turn, 3 * turn + 3) for batch in often.choices(epoch)]
        assert all(torch.equal(one, other) for one, other in zip(chosen, rare.choices(turn), strict=True))
    afterwards = states(once, "sgd", [0, 4], 2), states(thrice, "sgd", [0, 4], 6)
    for seldom, every in zip(*afterwards, strict=True):
        assert all(distance(one, other) == 0 for one, other in zip(seldom, every[2::3], strict=True))


def test_a_resumed_run_has_the_batches_of_its_reading() -> None:
    experiment = small("addition-97", "training.readings=3")
    begun, resumed = Ensemble(experiment, [3], CPU), Ensemble(experiment, [3], CPU)
    before = [begun.choices(epoch)[0] for epoch in range(6)]
    assert torch.equal(resumed.choices(4)[0], before[4])
    assert torch.equal(resumed.choices(1)[0], before[1])


def test_readings_must_divide_the_steps_of_one_pass() -> None:
    with pytest.raises(SpecError, match="readings must divide the 3 steps of a pass, got 2"):
        Ensemble(small("addition-97", "training.readings=2"), [0], CPU)
    with pytest.raises(SpecError, match="readings must be 1 where an epoch has several passes, got 3 and 2 passes"):
        small("addition-97", "training.readings=3", "training.passes=2")


# dropout

DROPS = ("model.channels=[3,4,4,3]", "training.drop_last=false", "training.batch=10", DOUBLE)
"""Blocks of two convolutions; batches of 10, 10 and 4 points."""


def dropping(*changes: str, method: str = "adam") -> Experiment:
    return small("cifar-castanyer", *DROPS, *changes, methods=(method,))


def masks_of(stack: Ensemble, epoch: int) -> list[torch.Tensor]:
    """By batch, as a step gets them."""
    stack.begin(epoch)
    found = [stack.take(chosen).masks for chosen in stack.choices(epoch)]
    return [masks for masks in found if masks is not None]


@pytest.mark.usefixtures("few_pictures")
def test_masks_depend_on_the_seed_and_the_pass_alone() -> None:
    experiment = dropping()
    first, later = Ensemble(experiment, [0, 1], CPU), Ensemble(experiment, [3, 1, 0], CPU)
    masks_of(later, 2)
    torch.manual_seed(5)
    one, other = masks_of(first, 7), masks_of(later, 7)
    assert [tuple(masks.shape) for masks in one] == [(2, 10, 4 + 3), (2, 10, 4 + 3), (2, 4, 4 + 3)]
    for own, its in zip(one, other, strict=True):
        assert torch.equal(own[0], its[2])
        assert torch.equal(own[1], its[1])
        assert not torch.equal(own[0], own[1])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0], masks_of(first, 8)[0])
    assert all(torch.equal(own, its) for own, its in zip(one, masks_of(first, 7), strict=True))
    batches = [batch.masks for batch in Ensemble(experiment, [0, 1], CPU).epoch(7)]
    assert all(its is not None and torch.equal(own, its) for own, its in zip(one, batches, strict=True))


@pytest.mark.usefixtures("few_pictures")
def test_readings_of_a_pass_share_its_masks() -> None:
    whole, parts = (Ensemble(dropping(f"training.readings={n}"), [0], CPU) for n in (1, 3))
    for turn in range(2):
        often = [masks for epoch in range(3 * turn, 3 * turn + 3) for masks in masks_of(parts, epoch)]
        assert all(torch.equal(one, other) for one, other in zip(masks_of(whole, turn), often, strict=True))
    with pytest.raises(
        SpecError, match=r"training\.passes must be 1 with dropout, got 2; a point has one mask in an epoch"
    ):
        Ensemble(dropping("training.passes=2"), [0], CPU)


@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("method", ["adam", "rmsprop-egd"])
def test_a_seed_with_dropout_is_the_seed_alone(method: str) -> None:
    assert at_any_time(dropping(method=method), method, [0, 4, 2], 3) < ROUNDING


@pytest.mark.usefixtures("few_pictures")
def test_a_gradient_with_dropout_is_that_of_each_network_with_its_masks() -> None:
    experiment = dropping()
    stack, _ = together(experiment, "adam", [0, 1, 2])
    batch = stack.epoch(3)[1]
    stack.backward(batch)
    assert batch.masks is not None
    for index in range(3):
        one = {key: tensor.detach()[index].clone().requires_grad_() for key, tensor in stack.parameters.items()}
        outputs = experiment.model.one(one, batch.inputs[index], batch.masks[index])
        loss = stack.loss(outputs[None], batch.labels[index][None]).sum()
        for key, grad in zip(one, torch.autograd.grad(loss, list(one.values())), strict=True):
            torch.testing.assert_close(stack.parameters[key].grad[index], grad, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("few_pictures")
def test_training_accuracy_sees_dropout_and_evaluation_does_not() -> None:
    """With nine of ten channels dropped the training loss on batches is not that of the network."""
    during, after = (dropping(f"training.accuracy={when}", "model.dropout=0.9") for when in ("during", "after"))
    found = {}
    for when, experiment in (("during", during), ("after", after)):
        ensemble, stepper = together(experiment, "adam", [0, 1])
        (epoch,) = islice(train(ensemble, stepper), 1)
        found[when] = [record["train_loss"] for record, *_ in epoch.records]
        plain = ensemble.loss(ensemble.forward(ensemble.train.inputs), ensemble.train.labels).tolist()
        assert (found[when] == pytest.approx(plain, rel=1e-9)) == (when == "after")


def test_a_validation_split_is_taken_from_the_test_points_by_the_seed() -> None:
    whole, apart = (Ensemble(small("addition-97", f"training.validation={share}"), [2, 5], CPU) for share in (0.0, 0.25))
    assert whole.validation is None
    assert apart.validation is not None
    assert torch.equal(whole.train.inputs, apart.train.inputs)
    for index in range(2):
        both = torch.cat([apart.test.inputs[index], apart.validation.inputs[index]]).tolist()
        assert sorted(both) == sorted(whole.test.inputs[index].tolist())
    assert apart.validation.labels.shape[1] == round(0.25 * whole.test.labels.shape[1])
    alone = Ensemble(small("addition-97", "training.validation=0.25"), [5], CPU)
    assert alone.validation is not None
    assert torch.equal(alone.validation.inputs[0], apart.validation.inputs[1])


@pytest.mark.parametrize("share", [1e-5, 0.99999])
def test_a_validation_split_leaves_points_on_both_sides(share: float) -> None:
    with pytest.raises(SpecError, match=r"training\.validation must leave some"):
        Ensemble(small("addition-97", f"training.validation={share}"), [0], CPU)
