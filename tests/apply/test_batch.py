"""Matrices of one shape share one call on a GPU. Forced here on a CPU, sharing must change no bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.apply import Batches, PassSettings, State, affected, gradients_of, transform_gradients
from egalitarian.apply.batch import REMEMBERED, SHARED_ELEMENTS, joined, parted
from egalitarian.transforms import MatrixTransform, Site, as_chain
from egalitarian.transforms import matrix as transforms

Corrupt = Callable[[int, str, Tensor], None]

CHAINS: dict[str, Any] = {
    "polar": eg.Polar(),
    "svd": eg.Polar(method="svd"),
    "rms": eg.Polar(scale="rms"),
    "floor": eg.Polar(floor=1e-3),
    "row norm": eg.RowNorm(),
    "natural": eg.Natural(),
    "lowrank": eg.LowRankPolar(2),
    "momentum then polar": [eg.Momentum(), eg.Polar()],
    "polar then grokfast": [eg.Polar(), eg.GrokfastEMA()],
    "between filters": [eg.Momentum(), eg.Polar(), eg.GrokfastMA(2)],
    "shared and not": [eg.LowRankPolar(3), eg.Polar()],
}


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets matrices share calls on a CPU, in batches of at most that many entries."""
    return lambda entries: monkeypatch.setitem(SHARED_ELEMENTS, "cpu", entries)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that `polar` is called with."""
    seen: list[tuple[int, ...]] = []

    def polar(G: Tensor, **options: Any) -> Tensor:
        seen.append(tuple(G.shape))
        return eg.polar(G, **options)

    monkeypatch.setattr(transforms, "polar", polar)
    return seen


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def weights(stack: int | None = None) -> dict[str, nn.Parameter]:
    """Equal matrices with others in between, one of them convolutional and one split, and a bias."""
    first = () if stack is None else (stack,)
    shapes = {"a": (5, 12), "b": (12, 5), "c": (5, 12), "conv": (5, 3, 2, 2), "qkv": (15, 12), "bias": (5,), "d": (5, 12)}
    values = tensors(*(first + shape for shape in shapes.values()))
    return {name: nn.Parameter(value) for name, value in zip(shapes, values, strict=True)}


def plan_of(parameters: dict[str, nn.Parameter], stack: int | None = None) -> eg.Plan:
    taken = [name for name in parameters if name != "bias"]
    return eg.matrices(parameters, include=taken, split={"qkv": (5, 5, 5)}, stack=stack is not None)


def run(
    chain: Any, *, stack: int | None = None, steps: int = 3, corrupt: Corrupt = lambda step, name, grad: None, **more: Any
) -> tuple[dict[str, Tensor], State]:
    """The gradients after some steps, and the state."""
    parameters = weights(stack)
    plan = plan_of(parameters, stack)
    state = State()
    settings = PassSettings(as_chain(chain), **more)
    batches, entries = Batches(settings.chain), affected(plan.entries, settings.chain)
    for step in range(steps):
        news = tensors(*(tuple(each.shape) for each in parameters.values()), seed=step)
        for (name, parameter), grad in zip(parameters.items(), news, strict=True):
            corrupt(step, name, grad)
            parameter.grad = grad
        state = transform_gradients(gradients_of(entries), batches, settings, state)
    return {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}, state


def assert_same(one: tuple[dict[str, Tensor], State], other: tuple[dict[str, Tensor], State]) -> None:
    """Asserts that gradients and states are equal bit for bit, with NaN equal to NaN."""
    for name, grad in one[0].items():
        torch.testing.assert_close(other[0][name], grad, rtol=0, atol=0, equal_nan=True)
    assert one[1].step == other[1].step
    assert {name: set(memory) for name, memory in one[1].tensors.items()} == {
        name: set(memory) for name, memory in other[1].tensors.items()
    }
    for name, memory in one[1].tensors.items():
        for key, value in memory.items():
            torch.testing.assert_close(other[1].tensors[name][key], value, rtol=0, atol=0)


@pytest.mark.parametrize("stack", [None, 4])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("entries", [130, 2**24])
def test_sharing_changes_no_bit(share: Callable[[int], None], chain: Any, stack: int | None, entries: int) -> None:
    active = True if stack is None else torch.tensor([True, False, True, True])
    alone = run(chain, stack=stack, active=active)
    share(entries)
    assert_same(run(chain, stack=stack, active=active), alone)


def test_sharing_in_float32_changes_rounding_alone(share: Callable[[int], None]) -> None:
    """A batched product and a single one round differently in float32, where the fast factor is computed."""
    alone, _ = run(eg.Polar(precision="fast"))
    share(2**24)
    for name, grad in run(eg.Polar(precision="fast"))[0].items():
        torch.testing.assert_close(grad, alone[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("chain", [eg.Polar(), [eg.Momentum(), eg.Polar(), eg.GrokfastEMA()]], ids=["polar", "filters"])
@pytest.mark.parametrize("stack", [None, 4])
def test_sharing_changes_no_bit_with_decay_and_a_scaler(
    share: Callable[[int], None], chain: Any, stack: int | None
) -> None:
    more: dict[str, Any] = {"grad_scale": torch.tensor(1024.0), "decay": lambda entry: 0.1 if entry.name in "abd" else 0.0}
    more["active"] = True if stack is None else torch.tensor([True, True, False, True])
    alone = run(chain, stack=stack, **more)
    share(2**24)
    assert_same(run(chain, stack=stack, **more), alone)


@pytest.mark.parametrize("chain", [eg.Polar(), eg.RowNorm(), [eg.Momentum(), eg.Polar()]], ids=["polar", "norm", "filter"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("stack", [None, 4])
def test_a_non_finite_matrix_stays_unchanged_and_affects_no_other(
    share: Callable[[int], None], chain: Any, value: float, stack: int | None
) -> None:
    def corrupt(step: int, name: str, grad: Tensor) -> None:
        if step == 1 and name == "c":
            grad[..., 2, 3] = value
            if stack is not None:
                grad[1:] = 0.5

    active = True if stack is None else torch.ones(stack, dtype=torch.bool)
    alone = run(chain, stack=stack, steps=2, corrupt=corrupt, active=active)
    share(2**24)
    shared = run(chain, stack=stack, steps=2, corrupt=corrupt, active=active)
    assert_same(shared, alone)
    kept = shared[0]["c"] if stack is None else shared[0]["c"][0]
    assert not kept.isfinite().all()
    assert kept[0, 0] == tensors(*(tuple(each.shape) for each in weights(stack).values()), seed=1)[2].flatten()[0]
    assert all(grad.isfinite().all() for name, grad in shared[0].items() if name != "c")


def test_observers_see_every_matrix_once_in_the_order_of_the_plan(share: Callable[[int], None]) -> None:
    seen: list[tuple[str, Tensor]] = []
    more: dict[str, Any] = {"observe": lambda name, G: seen.append((name, G.clone())), "decay": lambda entry: 0.1}
    run(eg.Polar(), steps=1, **more)
    alone = list(seen)
    seen.clear()
    share(2**24)
    run(eg.Polar(), steps=1, **more)
    assert [name for name, _ in seen] == ["a", "b", "c", "conv", "qkv[0:5]", "qkv[5:10]", "qkv[10:15]", "d"]
    assert all(one[0] == other[0] and torch.equal(one[1], other[1]) for one, other in zip(seen, alone, strict=True))


def test_the_doors_agree_bitwise_when_matrices_share_calls(share: Callable[[int], None]) -> None:
    share(2**24)
    results = []
    chain = [eg.Momentum(), eg.Polar()]
    for door in ("equalize_", "attach", "EGD"):
        parameters = weights()
        plan = plan_of(parameters)
        if door == "EGD":
            optimizer: torch.optim.Optimizer = eg.EGD(plan, lr=0.1, transform=chain)
        else:
            optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
        if door == "attach":
            eg.attach(optimizer, plan, chain)
        state = None
        for step in range(3):
            news = tensors(*(tuple(each.shape) for each in parameters.values()), seed=step)
            for parameter, grad in zip(parameters.values(), news, strict=True):
                parameter.grad = grad
            state = eg.equalize_(plan, chain, state=state) if door == "equalize_" else None
            optimizer.step()
        results.append(parameters)
    for name, parameter in results[0].items():
        assert all(torch.equal(parameter, other[name]) for other in results[1:])


# -- which matrices share a call -------------------------------------------------------------------------------------


def test_on_a_cpu_every_matrix_is_a_separate_call(calls: list[tuple[int, ...]]) -> None:
    run(eg.Polar(), steps=1)
    assert calls == [(5, 12), (12, 5), (5, 12), (5, 12), (5, 12), (5, 12), (5, 12), (5, 12)]


@pytest.mark.parametrize(("entries", "expected"), [(2**24, [7, 1]), (180, [3, 1, 3, 1]), (130, [2, 1, 1, 1, 1, 1, 1])])
def test_matrices_of_one_shape_share_a_call_up_to_the_allowed_entries(
    share: Callable[[int], None], calls: list[tuple[int, ...]], entries: int, expected: list[int]
) -> None:
    share(entries)
    run(eg.Polar(), steps=1)
    assert [shape[0] if len(shape) == 3 else 1 for shape in calls] == expected


def test_stacks_of_one_shape_are_joined_to_one_batch(share: Callable[[int], None], calls: list[tuple[int, ...]]) -> None:
    share(2**24)
    run(eg.Polar(), stack=4, steps=1, active=torch.ones(4, dtype=torch.bool))
    assert calls == [(28, 5, 12), (4, 12, 5)]


def test_matrices_of_different_dtypes_share_no_call(share: Callable[[int], None], calls: list[tuple[int, ...]]) -> None:
    share(2**24)
    dtypes = (torch.float32, torch.float64, torch.float32, torch.float64)
    parameters = {f"w{index}": nn.Parameter(torch.zeros(4, 3, dtype=dtype)) for index, dtype in enumerate(dtypes)}
    for parameter in parameters.values():
        parameter.grad = torch.randn_like(parameter)
    eg.equalize_(eg.matrices(parameters, include="*"))
    assert calls == [(2, 4, 3), (2, 4, 3)]


def test_a_custom_transform_gets_one_named_matrix_per_call_unless_it_shares(share: Callable[[int], None]) -> None:
    share(2**24)
    names: list[str] = []

    class Named(MatrixTransform):
        def __call__(self, G: Tensor, site: Site) -> Tensor:
            names.append(f"{site.name}: {tuple(G.shape)}")
            return G

    class Sharing(Named, shares=True):
        pass

    @dataclass(frozen=True, repr=False)
    class Derived(eg.Polar):
        pass

    assert (eg.Polar.shares, Derived.shares, eg.LowRankPolar.shares, Named.shares) == (True, False, False, False)
    parameters = {name: each for name, each in weights().items() if name in "abc"}
    for chain in (Named(), Sharing()):
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        eg.equalize_(eg.matrices(parameters, include="*"), chain)
    assert names == ["a: (5, 12)", "b: (12, 5)", "c: (5, 12)", ": (2, 5, 12)", "b: (12, 5)"]


def test_batches_depend_on_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = weights()
    work = [(entry, torch.empty(entry.shape, device="meta")) for entry in plan_of(parameters).entries]
    assert [[entry.name for entry in batch.entries] for batch in Batches([eg.Polar()]).of(work)] == [
        [name] for name in parameters
    ]
    monkeypatch.setitem(SHARED_ELEMENTS, "meta", SHARED_ELEMENTS["cuda"])
    names = [[entry.name for entry in batch.entries] for batch in Batches([eg.Polar()]).of(work)]
    assert names == [["a", "c", "conv", "qkv", "d"], ["b"], ["bias"]]


def test_parted_is_the_inverse_of_joined() -> None:
    matrices = tensors((2, 3), (4, 2, 3), (2, 3))
    batch = joined(matrices)
    assert batch.shape == (6, 2, 3)
    assert all(torch.equal(one, other) for one, other in zip(parted(batch, matrices), matrices, strict=True))


def test_an_expanded_gradient_is_replaced_by_a_new_tensor(share: Callable[[int], None]) -> None:
    share(2**24)
    parameters = {name: nn.Parameter(torch.zeros(4, 3)) for name in "abc"}
    for parameter in parameters.values():
        parameter.grad = torch.randn(4, 1).expand(4, 3)
    eg.equalize_(eg.matrices(parameters, include="*"))
    for parameter in parameters.values():
        assert parameter.grad is not None
        assert parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
        assert int((torch.linalg.svdvals(parameter.grad) > 0.5).sum()) == 1


# -- batches are built once ------------------------------------------------------------------------------------------


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of gradients of every set that batches were built for."""
    seen: list[int] = []
    build = Batches._build

    def counted(self: Batches, gradients: Any) -> Any:
        seen.append(len(gradients))
        return build(self, gradients)

    monkeypatch.setattr(Batches, "_build", counted)
    return seen


def attached(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    return optimizer


def built_in(model: nn.Module) -> torch.optim.Optimizer:
    return eg.EGD(eg.matrices(model).groups(), lr=0.1)


@pytest.mark.parametrize("make", [attached, built_in])
def test_batches_are_built_again_only_when_other_parameters_have_gradients(
    make: Callable[[nn.Module], torch.optim.Optimizer], builds: list[int]
) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = make(model)

    def step(*frozen: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(6, 5, dtype=model[0].weight.dtype)).square().sum().backward()
        for index in frozen:
            model[index].weight.grad = None
        optimizer.step()

    for _ in range(4):
        step()
    assert builds == [2], "the shapes have not changed"
    step(1)
    step(1)
    assert builds == [2, 1], "one matrix has no gradient"
    step()
    assert builds == [2, 1], "both sets are remembered"
    model.double()
    step()
    step()
    assert builds == [2, 1, 2], "another dtype"


def test_a_new_param_group_builds_batches_again(builds: list[int]) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    eg.attach(optimizer, model)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(model[1].parameters())})
        optimizer.zero_grad()
        model(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()
    assert builds == [1, 2]


def test_the_number_of_cached_sets_of_batches_is_limited(builds: list[int]) -> None:
    parameters = {str(index): nn.Parameter(torch.ones(2, 2)) for index in range(REMEMBERED + 4)}
    plan = eg.matrices(parameters, include="*")
    batches = Batches([eg.Polar()])
    for entry in (*plan.entries, *plan.entries):
        batches.of([(entry, torch.ones(2, 2))])
    assert len(batches._built) <= REMEMBERED
    assert len(builds) > len(plan.entries)


def test_batches_in_use_stay_the_same_while_others_come_and_go() -> None:
    """Their recordings are found by them."""
    parameters = {str(index): nn.Parameter(torch.ones(2, 2)) for index in range(3 * REMEMBERED)}
    batches = Batches([eg.Polar()])
    used, *others = eg.matrices(parameters, include="*").entries
    kept = batches.of([(used, torch.ones(2, 2))])
    for entry in others:
        batches.of([(entry, torch.ones(2, 2))])
        assert batches.of([(used, torch.ones(2, 2))]) is kept


def test_gradients_from_inference_mode_are_in_batches_of_their_own() -> None:
    """A graph cannot write there."""
    batches = Batches([eg.Polar()])
    (entry,) = eg.matrices({"w": nn.Parameter(torch.ones(2, 2))}, include="*")
    with torch.inference_mode():
        inside = torch.ones(2, 2)
    assert batches.of([(entry, torch.ones(2, 2))]) is not batches.of([(entry, inside)])
