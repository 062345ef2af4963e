"""Methods: the lab's steps are the paper's, torch's and the library's own; a state is all that one seed needs to resume."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from small import CPU, DOUBLE, GROUPS, MODULAR, OPTIMS, VARIANTS, State, distance, parameters, same, small, together
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.lab import config
from egalitarian.lab.config import Experiment, Method, Optim, TransformSettings, catalog
from egalitarian.lab.config.schema import SpecError
from egalitarian.lab.training.ensemble import Ensemble
from egalitarian.lab.training.optimizers import OPTIMIZERS
from egalitarian.lab.training.stepper import TRANSFORMS, Stepper

EXACT = 1e-11
"""Rounding of float64 (2e-16), through some dozen steps; U Vᵀ magnifies it by 2 |G| / s_min, here up to 1e4."""


def benchmark() -> Any:
    file = Path(__file__).parents[3] / "benchmarks" / "lab.py"
    found = importlib.util.spec_from_file_location("benchmarks_lab", file)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def steps(ensemble: Ensemble, stepper: Stepper, epochs: range) -> None:
    """The loop without its measures."""
    for epoch in epochs:
        for batch in ensemble.epoch(epoch):
            ensemble.backward(batch)
            stepper.add_decay()
            stepper.step()


def trained(experiment: Experiment, method: str, epochs: int, seeds: tuple[int, ...] = (0,)) -> list[State]:
    ensemble, stepper = together(experiment, method, seeds)
    steps(ensemble, stepper, range(epochs))
    return parameters(ensemble)


class Plain:
    """One seed as a torch user would write it: plain parameters, dense inputs, a loss, a step."""

    def __init__(self, experiment: Experiment, seed: int = 0) -> None:
        self._alone = Ensemble(experiment, [seed], CPU)
        self.weights = {name: nn.Parameter(tensor[0].clone()) for name, tensor in self._alone.start.items()}

    def epoch(self, number: int, step: Any, decay: float = 0.0) -> None:
        W1, b1, W2 = self.weights.values()
        for inputs, labels, _ in self._alone.epoch(number):
            x = nn.functional.one_hot(inputs[0], W1.shape[1]).sum(1).to(W1.dtype)
            loss = nn.functional.cross_entropy(nn.functional.relu(x @ W1.mT + b1) @ W2.mT, labels[0])
            for weight in self.weights.values():
                weight.grad = None
            (loss + decay / 2 * (W1.square().sum() + W2.square().sum())).backward()
            step()

    @property
    def state(self) -> State:
        return {name: weight.detach().clone() for name, weight in self.weights.items()}


# the paper's own loop


@pytest.mark.parametrize(("method", "equalise"), [("sgd", False), ("egd", True)])
@pytest.mark.parametrize("name", ["addition-97", "multiplication-97"])
def test_the_lab_is_the_straightforward_program(name: str, method: str, equalise: bool) -> None:
    experiment = small(name, DOUBLE)
    weights, epoch = benchmark().straightforward(experiment, 1, equalise)
    for number in range(6):
        epoch(number)
    found = trained(experiment, method, 6, (0, 1, 2))[1]
    assert distance(found, {name: weight.detach() for name, weight in weights.items()}) < EXACT


@pytest.mark.parametrize(("method", "equalise"), [("sgd", False), ("egd", True)])
def test_the_lab_is_the_straightforward_program_in_float32(method: str, equalise: bool) -> None:
    """For one step. A gradient is right to some eps |G|, and an error of it moves U Vᵀ by at most 2 / s_min as much."""
    experiment = small("addition-97", "training.batch=24")
    weights, epoch = benchmark().straightforward(experiment, 0, equalise)
    epoch(0)
    ensemble, stepper = together(experiment, method, [0])
    (batch,) = ensemble.epoch(0)
    ensemble.backward(batch)
    stepper.add_decay()
    values = eg.spectrum(stepper.gradient[0]).values
    stepper.step()
    of_the_gradient = 10 * torch.finfo(torch.float32).eps * float(values[0])
    bound = 0.7 * of_the_gradient * (2 / float(values[-1]) if equalise else 1) + 1e-7
    assert bound < 0.02
    assert distance(parameters(ensemble)[0], {name: weight.detach() for name, weight in weights.items()}) < bound


# where decay enters


def test_decay_in_the_loss_is_decay_in_the_loss() -> None:
    experiment = small("addition-97", DOUBLE, "optim.weight_decay=0.01")
    plain = Plain(experiment)
    optimizer = torch.optim.SGD(plain.weights.values(), lr=experiment.method("sgd").optim.lr)
    for number in range(4):
        plain.epoch(number, optimizer.step, decay=0.01)
    assert distance(trained(experiment, "sgd", 4)[0], plain.state) < EXACT
    assert (
        distance(trained(experiment.replace(methods={"sgd": without_decay(experiment)}), "sgd", 4)[0], plain.state) > 1e-3
    )


def without_decay(experiment: Experiment) -> Method:
    method = experiment.method("sgd")
    return method.replace(optim=method.optim.replace(weight_decay=0.0))


def test_decay_in_the_loss_is_the_librarys_decay_before() -> None:
    experiment = small("addition-97", DOUBLE, "optim.weight_decay=0.01", "epochs=9", methods=("egd",))
    plain, lr = Plain(experiment), experiment.method("egd").optim.lr
    W1, b1, W2 = plain.weights.values()
    optimizer = torch.optim.SGD([{"params": [W1, b1]}, {"params": [W2], "weight_decay": 0.01}], lr=lr)
    eg.attach(optimizer, eg.matrices({"hidden.weight": W1}, include=["hidden.weight"]), decay_before=0.01)
    for number in range(4):
        plain.epoch(number, optimizer.step)
    assert distance(trained(experiment, "egd", 4)[0], plain.state) < EXACT


def test_decay_after_acts_after_the_transforms() -> None:
    """W - lr (U Vᵀ + wd W): what attaching EGD to an SGD with weight decay does by itself."""
    changes = (DOUBLE, "optim.weight_decay=0.003", "hidden.weight_decay=0.03", "decay=after")
    experiment = small("addition-97", *changes, methods=("egd-after",))
    plain, lr = Plain(experiment), experiment.method("egd-after").optim.lr
    W1, b1, W2 = plain.weights.values()
    groups = [{"params": [W1], "weight_decay": 0.03}, {"params": [b1]}, {"params": [W2], "weight_decay": 0.003}]
    optimizer = torch.optim.SGD(groups, lr=lr)
    eg.attach(optimizer, eg.matrices({"hidden.weight": W1}, include=["hidden.weight"]))
    for number in range(4):
        plain.epoch(number, optimizer.step)
    assert distance(trained(experiment, "egd-after", 4)[0], plain.state) < EXACT


def test_one_step_of_egd_by_hand() -> None:
    experiment = small("addition-97", DOUBLE, "optim.weight_decay=0.01")
    ensemble, stepper = together(experiment, "egd", [0])
    before = parameters(ensemble)[0]
    ensemble.backward(ensemble.epoch(0)[0])
    plain = {name: tensor.grad[0].clone() for name, tensor in ensemble.parameters.items()}
    stepper.add_decay()
    G = plain["hidden.weight"] + 0.01 * before["hidden.weight"]
    torch.testing.assert_close(stepper.gradient[0], G, rtol=1e-14, atol=1e-14)
    stepper.step()
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    updates = {"hidden.weight": U @ Vh, "hidden.bias": plain["hidden.bias"]}  # no decay on biases
    updates["output.weight"] = plain["output.weight"] + 0.01 * before["output.weight"]
    expected = {name: before[name] - 0.7 * update for name, update in updates.items()}
    assert distance(parameters(ensemble)[0], expected) < EXACT


@pytest.mark.parametrize("mode", ["before", "after", "decoupled"])
def test_plain_sgds_decay_is_the_same_wherever_it_enters(mode: str) -> None:
    experiment = small("addition-97", DOUBLE, "optim.weight_decay=0.01", f"decay={mode}", methods=("sgd",))
    loss = small("addition-97", DOUBLE, "optim.weight_decay=0.01", methods=("sgd",))
    assert distance(trained(experiment, "sgd", 3)[0], trained(loss, "sgd", 3)[0]) < EXACT


# torch's optimizers


@pytest.mark.parametrize("name", OPTIMS)
def test_a_stack_under_an_optimizer_of_torch_is_each_seed_under_it(name: str) -> None:
    experiment = small("addition-97", DOUBLE, *OPTIMS[name], methods=("sgd",))
    method = experiment.method("sgd")
    found = trained(experiment, "sgd", 4, (0, 1, 2))[2]
    plain = Plain(experiment, seed=2)
    W1, b1, W2 = plain.weights.values()
    options: dict[str, Any] = {"lr": method.optim.lr}
    if method.optim.momentum:
        options["momentum"] = method.optim.momentum
    if method.optim.nesterov:
        options["nesterov"] = True
    after = 0.0 if method.decay == "before" else method.optim.weight_decay
    groups = [{"params": [W1, W2], "weight_decay": after}, {"params": [b1], "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[method.optim.optimizer](groups, **options)
    for number in range(4):
        plain.epoch(number, optimizer.step, decay=method.optim.weight_decay - after)
    assert distance(found, plain.state) < EXACT


def test_betas_reach_the_optimizer() -> None:
    changes = ("optim.optimizer=adam", "optim.lr=0.01", "optim.betas=[0.5, 0.9]")
    experiment = small("addition-97", DOUBLE, *changes, "optim.weight_decay=0", methods=("sgd",))
    plain = Plain(experiment)
    optimizer = torch.optim.Adam(plain.weights.values(), lr=0.01, betas=(0.5, 0.9))
    for number in range(2):
        plain.epoch(number, optimizer.step)
    assert distance(trained(experiment, "sgd", 2)[0], plain.state) < EXACT


def test_the_labs_muon_is_torchs_on_a_plain_parameter() -> None:
    experiment = small("addition-97", DOUBLE)
    method = experiment.method("muon")
    found = trained(experiment, "muon", 4, (0, 1, 2))[1]
    plain = Plain(experiment, seed=1)
    W1, b1, W2 = plain.weights.values()
    hidden = method.hidden
    muon = torch.optim.Muon(
        [W1], lr=hidden.lr, weight_decay=hidden.weight_decay, momentum=hidden.momentum, nesterov=hidden.nesterov
    )
    rest = torch.optim.SGD(
        [{"params": [b1]}, {"params": [W2], "weight_decay": method.optim.weight_decay}], lr=method.optim.lr
    )

    def step() -> None:
        muon.step()
        rest.step()

    for number in range(4):
        plain.epoch(number, step)
    # Muon orthogonalises in bfloat16: a rounding of the gradient may cost a whole digit of it, 2^-8, in a step of lr
    assert distance(found, plain.state) < 4 * 3 * hidden.lr * 2**-8 / float(plain.state["hidden.weight"].abs().max())


# selection


def test_every_transform_of_the_settings_is_the_librarys_or_a_spectrum_of_the_lab() -> None:
    library = ("Polar", "LowRankPolar", "RowNorm", "Natural", "Momentum", "GrokfastEMA", "GrokfastMA")
    spectra = {"Power", "RandomSpectrum", "HalfSpectrum", "ReversedSpectrum"}
    assert all(kind.__name__ == f"{transform.__name__}Settings" for kind, transform in TRANSFORMS.items())
    assert {transform.__name__ for transform in TRANSFORMS.values()} == {*library, *spectra}
    assert all(TRANSFORMS[getattr(config, f"{name}Settings")] is getattr(eg, name) for name in library)
    assert set(TransformSettings.kinds.values()) == set(TRANSFORMS)
    assert set(OPTIMIZERS) == set(get_args(get_type_hints(Optim)["optimizer"]))


# modules with settings of their own


def options(stepper: Stepper) -> dict[str, tuple[float, float]]:
    """The learning rate and the decay of every parameter, as its optimizer has them."""
    found = {}
    for group in stepper._groups:
        for leaf in group["params"]:
            for name, stack in stepper._parameters.items():
                if leaf is stack:
                    found[name] = (group["lr"], group["weight_decay"])
    return found


@pytest.mark.parametrize(
    ("method", "hidden", "bias"),
    [("egd-after", (3.0, 0.03), (3.0, 0.0)), ("adamw", (0.06, 1.0), (0.06, 0.0)), ("muon", (0.3, 0.03), (0.7, 0.0))],
)
def test_the_settings_of_a_group_reach_its_module_alone(
    method: str, hidden: tuple[float, float], bias: tuple[float, float]
) -> None:
    _, stepper = together(small("addition-97", *GROUPS), method, (0, 1, 2))
    assert options(stepper) == {"hidden.weight": hidden, "hidden.bias": bias, "output.weight": (0.05, 0.2)}


def test_a_group_has_its_decay_before_too() -> None:
    _, stepper = together(small("addition-97", "groups.output.weight_decay=0.2", methods=("egd",)), "egd", [0])
    assert stepper._decay_before == {"hidden.weight": 1e-4, "output.weight": 0.2}


def test_the_learning_rates_of_groups_rise_too() -> None:
    experiment = small("addition-97", *GROUPS)
    for method in ("adamw", "muon"):
        ensemble, _ = together(experiment, method, (0, 1))
        stepper = Stepper(experiment.method(method), ensemble.parameters, 4)
        ensemble.backward(ensemble.epoch(0)[0])
        for _ in range(3):
            stepper.step()
        assert options(stepper)["output.weight"][0] == 0.05 / 2


@pytest.mark.parametrize("names", [("blocks", "blocks.0"), ("blocks.0", "blocks")])
def test_of_two_groups_the_inner_one_counts_in_any_order(names: tuple[str, str]) -> None:
    rates = {"blocks": 1.0, "blocks.0": 2.0}
    parameters = {f"blocks.{index}.weight": torch.zeros(2, 3, 3, requires_grad=True) for index in range(2)}
    groups = {name: Optim(lr=rates[name]) for name in names}
    method = Method(title="", epochs=1, optim=Optim(), groups=groups, targets=("blocks.0.weight",))
    assert [lr for lr, _ in options(Stepper(method, parameters)).values()] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("method", "changes", "text"),
    [
        ("egd", ("groups.nothing.lr=1",), "groups must name modules of the model, got 'nothing'; it has hidden, output"),
        ("muon", ("groups.hidden.lr=1",), r"muon must have matrices alone, got 'hidden.bias' of shape \(16,\)"),
        (
            "egd",
            ('targets=["hidden.weight", "output.weight"]', "hidden.optimizer=adam", "groups.output.optimizer=sgd"),
            "targets must share an optimizer",
        ),
    ],
)
def test_a_group_that_cannot_be_is_an_error(method: str, changes: tuple[str, ...], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        together(small("addition-97", *changes, methods=(method,)), method, [0])


def test_a_target_that_is_not_there_is_an_error() -> None:
    experiment = small("addition-97", 'targets=["hiden.weight"]', methods=("egd",))
    with pytest.raises(
        SpecError, match=r"targets must name matrices of the model, got \['hiden.weight'\]; .*hidden.weight"
    ):
        together(experiment, "egd", [0])


def test_a_rank_that_does_not_fit_is_an_error() -> None:
    experiment = catalog.load("addition-97", [*MODULAR, 'transform=[{name="lowrank-polar",rank=15}]'], ["egd"])
    with pytest.raises(ValueError, match=r"rank must be in \[1, 14\] for 'hidden.weight'.*, got 15; lower it"):
        together(experiment, "egd", [0])


def test_other_targets_are_equalised_and_the_rest_left() -> None:
    experiment = small("addition-97", DOUBLE, 'targets=["output.weight"]', "optim.weight_decay=0", methods=("egd",))
    plain = Plain(experiment)
    W1, b1, W2 = plain.weights.values()
    optimizer = torch.optim.SGD([W1, b1, W2], lr=0.7)
    eg.attach(optimizer, eg.matrices({"output.weight": W2}, include=["output.weight"]))
    for number in range(3):
        plain.epoch(number, optimizer.step)
    assert distance(trained(experiment, "egd", 3)[0], plain.state) < EXACT


@pytest.mark.parametrize("target", ["hidden.weight", "output.weight"])
def test_a_target_may_have_another_optimizer(target: str) -> None:
    """Whichever comes first among the parameters, the transform goes with the target's."""
    changes = (
        f'targets=["{target}"]',
        "hidden.optimizer=adam",
        "hidden.lr=0.01",
        "optim.weight_decay=0",
        "hidden.weight_decay=0",
    )
    experiment = small("addition-97", DOUBLE, *changes, methods=("egd",))
    plain = Plain(experiment)
    chosen = plain.weights[target]
    adam = torch.optim.Adam([chosen], lr=0.01)
    eg.attach(adam, eg.matrices({target: chosen}, include=[target]))
    rest = torch.optim.SGD([weight for weight in plain.weights.values() if weight is not chosen], lr=0.7)

    def step() -> None:
        adam.step()
        rest.step()

    for number in range(3):
        plain.epoch(number, step)
    assert distance(trained(experiment, "egd", 3)[0], plain.state) < 1e-9  # Adam divides by |g|, however small


# resuming


@pytest.mark.parametrize("name", VARIANTS)
def test_a_state_is_all_that_is_needed_to_go_on(name: str) -> None:
    """Bitwise: into a fresh network, through the tensors of a file, in another batch of the same size."""
    method, changes = VARIANTS[name]
    experiment = small("addition-97", *changes, methods=(method,))
    ensemble, stepper = together(experiment, method, [0, 1, 2])
    steps(ensemble, stepper, range(2))
    saved = [{key: as_stored(value) for key, value in state.items()} for state in stepper.states()]
    weights = parameters(ensemble)
    steps(ensemble, stepper, range(2, 5))
    again, fresh = together(experiment, method, [0, 1, 2])
    with torch.no_grad():
        for key, stack in again.parameters.items():
            for own, state in zip(stack, weights, strict=True):
                own.copy_(state[key])
    fresh.load(saved)
    steps(again, fresh, range(2, 5))
    assert all(same(one, other) for one, other in zip(parameters(ensemble), parameters(again), strict=True))
    ours, theirs = stepper.states(), fresh.states()
    assert all(same(one, other) for one, other in zip(ours, theirs, strict=True))


def as_stored(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_state_is_one_seeds_own(name: str) -> None:
    """A seed's state in a batch is its state alone, so that a smaller batch can resume with it."""
    method, changes = VARIANTS[name]
    experiment = small("addition-97", DOUBLE, *changes, methods=(method,))
    ensemble, stepper = together(experiment, method, [0, 1, 2])
    steps(ensemble, stepper, range(2))
    alone, own = together(experiment, method, [2])
    steps(alone, own, range(2))
    one, other = stepper.states()[2], own.states()[0]
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["sgd", "adam", "muon"])
def test_learning_rates_rise_in_a_straight_line_and_go_on_where_they_were(kind: str) -> None:
    hidden = Optim(optimizer="muon", lr=0.3, momentum=0.9) if kind == "muon" else None
    optim = Optim(optimizer="sgd" if kind == "muon" else kind, lr=0.5)  # type: ignore[arg-type]
    method = Method(title="", epochs=1, decay="decoupled" if kind == "muon" else "before", optim=optim, hidden=hidden)
    ensemble = Ensemble(small(), [0, 1], torch.device("cpu"))
    stepper = Stepper(method, ensemble.parameters, 4)
    seen = []
    for _ in range(7):
        ensemble.backward(ensemble.epoch(0)[0])
        stepper.step()
        seen.append({group["lr"] for group in stepper._groups})
        states = stepper.states()
        stepper = Stepper(method, ensemble.parameters, 4)
        stepper.load(states)
    full = {0.5, 0.3} if kind == "muon" else {0.5}
    assert seen == [{rate * share for rate in full} for share in (0, 0.25, 0.5, 0.75, 1, 1, 1)]


def test_when_every_seed_is_off_a_step_is_the_plain_one() -> None:
    """The stepper knows it, after loading a state as well, so that captured steps can omit the transforms."""
    experiment = small()
    ensemble, stepper = together(experiment, "egd", (0, 1))
    plainly, plain = together(experiment, "sgd", (0, 1))
    for accuracies, all_off in (([0.5, 0.5], False), ([0.99, 0.5], False), ([0.5, 0.99], True)):
        stepper.observe(torch.tensor(accuracies))
        assert stepper.all_off == all_off
    again = Stepper(experiment.method("egd"), ensemble.parameters)
    assert not again.all_off
    again.load(stepper.states())
    assert again.all_off
    steps(ensemble, again, range(2))
    steps(plainly, plain, range(2))
    assert all(same(one, other) for one, other in zip(parameters(ensemble), parameters(plainly), strict=True))


@pytest.mark.parametrize("name", ["sgd with momentum", "adam", "adamw", "radam", "rmsprop", "muon", "egd"])
def test_reset_optimizers_are_new_ones(name: str) -> None:
    """Bit for bit, and in the same tensors, which a captured step reads."""
    method, changes = VARIANTS[name]
    experiment = small("addition-97", *changes, methods=(method,))
    ensemble, stepper = together(experiment, method, (0, 1))
    steps(ensemble, stepper, range(3))
    fresh, new = together(experiment, method, (0, 1))
    with torch.no_grad():
        for key, tensor in ensemble.parameters.items():
            fresh.parameters[key].copy_(tensor)
    before = addresses(stepper)
    stepper.reset()
    steps(ensemble, stepper, range(3, 5))
    steps(fresh, new, range(3, 5))
    assert addresses(stepper) == before
    assert all(same(one, other) for one, other in zip(parameters(ensemble), parameters(fresh), strict=True))


def addresses(stepper: Stepper) -> list[int]:
    """Of all tensors in the optimizers' states."""
    states = [state for own in stepper._optimizers for state in own.optimizer.state.values()]
    return [value.data_ptr() for state in states for value in state.values() if isinstance(value, torch.Tensor)]


@pytest.mark.usefixtures("few_pictures")
def test_filters_apart_are_equalised_one_by_one() -> None:
    """By a plain loop over seeds, convolutions and output channels; the hidden layer is one matrix as ever."""
    experiment = small("cifar-filters", "training.precision=float64", "optim.optimizer=sgd", "optim.lr=1")
    ensemble, stepper = together(experiment, "adam-egd", (0, 1))
    before = {name: tensor.detach().clone() for name, tensor in ensemble.parameters.items()}
    ensemble.backward(ensemble.epoch(0)[0])
    grads = {name: parameter.grad.clone() for name, parameter in ensemble.parameters.items()}
    stepper.step()
    seen = 0
    for name, grad in grads.items():
        matrices = grad.flatten(2) if name.startswith("conv") and grad.ndim > 2 else grad
        for seed, matrix in enumerate(matrices):
            expected = matrix
            if name != "output.weight" and matrix.ndim == 2:
                assert matrix.shape in ((3, 9), (4, 9), (8, 64))
                U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
                kept = S.gt(1e-9 * S[0])  # a dead channel has no gradient
                expected, seen = U @ torch.diag(kept.double()) @ Vh, seen + 1
            moved = before[name][seed] - ensemble.parameters[name].detach()[seed]
            torch.testing.assert_close(moved, expected.reshape(moved.shape), rtol=0, atol=1e-6)
    assert seen == 2 * (3 + 4 + 4 + 1)
