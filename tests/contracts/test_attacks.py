"""Defects that reviews found, one test each: wrong results without a message, which must not return."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import loss_of, network, same, train

import egalitarian as eg
from egalitarian.transforms import ElementwiseTransform, MatrixTransform, Memory, Site


def test_a_tied_output_head_is_still_the_head() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(11, 4)
            self.up = nn.Linear(4, 8)
            self.down = nn.Linear(8, 4)
            self.output = nn.Linear(4, 11, bias=False)
            self.output.weight = self.tokens.weight

    assert [entry.name for entry in eg.matrices(Language()).taken] == ["up.weight", "down.weight"]


def test_a_parametrized_head_is_still_the_head() -> None:
    model = network()
    nn.utils.parametrizations.weight_norm(model[4])
    assert [entry.name for entry in eg.matrices(model).taken] == ["0.weight", "2.weight"]


def test_a_step_that_calls_that_of_its_base_class_transforms_once() -> None:
    class Derived(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)  # with it, torch wraps SGD.step in hooks as well
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = Derived([weight], lr=1.0)
    egd = eg.attach(optimizer, eg.matrices({"w": weight}, include="w"), eg.GrokfastEMA(lamb=2.0))

    def closure() -> Tensor:
        weight.grad = torch.ones(2, 2)
        return weight.sum()

    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(weight.grad, torch.full((2, 2), 3.0))
    optimizer.step(closure)
    assert egd.state_dict()["step"] == 2
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    optimizer.step(closure)  # an error in a closure has no effect on later steps
    assert egd.state_dict()["step"] == 3


@pytest.mark.parametrize("door", ["attach", "EGD"])
def test_torchs_checkpoint_helpers_change_no_memory_and_count_no_step(door: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = network()
    chain = [eg.GrokfastEMA(), eg.Polar()]
    egd: Any = None
    if door == "EGD":
        optimizer: torch.optim.Optimizer = eg.EGD(eg.matrices(model), lr=0.1, momentum=0.9, transform=chain)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        egd = eg.attach(optimizer, model, chain, decay_before=0.1)
    get_optimizer_state_dict(model, optimizer)
    if egd is None:
        assert optimizer.param_groups[0]["egd_steps"] == 0
    else:
        assert egd.state_dict()["step"] == 0
        assert not any(memory["0.count"] for memory in egd.state_dict()["tensors"].values())
    assert not optimizer.state[model[0].weight]["momentum_buffer"].any()


def test_groups_of_a_plan_carry_it_to_egd() -> None:
    one, other = network(), network()
    settings = {"taken": {"weight_decay": 0.03}, "left": {"weight_decay": 1e-4}}
    plan, other_plan = eg.matrices(one, split={"0.weight": (3, 5)}), eg.matrices(other, split={"0.weight": (3, 5)})
    train(one, eg.EGD(plan.groups(**settings), lr=0.1), 3)
    optimizer = torch.optim.SGD(other_plan.groups(**settings), lr=0.1)
    eg.attach(optimizer, other_plan)
    train(other, optimizer, 3)
    assert same(one, other)


def test_ten_steps_without_any_gradient_warn() -> None:
    model = network()
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    for _ in range(9):
        loss_of(trained).backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="no parameter has had a gradient in 10 steps"):
        optimizer.step()


def test_a_replaced_matrix_warns() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, eg.matrices(model))
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    optimizer.param_groups[0]["params"][0] = model[0].weight
    loss_of(model).backward()
    with pytest.warns(UserWarning, match=r"'0\.weight' left the optimizer"):  # noqa: SIM117
        with pytest.warns(UserWarning, match="not equalised"):
            optimizer.step()


def test_a_tensor_under_two_names_is_refused() -> None:
    weight = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="each tensor once, got one as 'a' and 'b'"):
        eg.matrices({"a": weight, "b": weight}, include="*")


def test_filters_take_one_number_per_stack_element() -> None:
    weights = {"w": nn.Parameter(torch.zeros(3, 4, 5)), "t": nn.Parameter(torch.zeros(3))}
    optimizer = torch.optim.SGD(weights.values(), lr=1.0)
    eg.attach(optimizer, eg.matrices(weights, include="w", stack=True), eg.Momentum(0.5))
    weights["t"].grad = torch.tensor([2.0, torch.nan, 2.0])
    weights["w"].grad = torch.ones(3, 4, 5)
    optimizer.step()
    assert torch.equal(weights["t"].detach().nan_to_num(7.0), torch.tensor([-1.0, 7.0, -1.0]))


def test_a_parameter_of_the_same_length_is_not_a_stack() -> None:
    weights = {"experts": nn.Parameter(torch.zeros(4, 3, 3)), "gate": nn.Parameter(torch.zeros(4, 3))}
    plan = eg.matrices(weights, include="experts", stack="experts")
    with pytest.raises(ValueError, match="leading axis of 4 in every parameter, got 'gate'"):
        eg.attach(torch.optim.SGD(weights.values(), lr=0.1), plan, [eg.Momentum(), eg.Polar()])


def test_egd_refuses_an_added_parameter_that_is_no_stack() -> None:
    optimizer = eg.EGD(eg.matrices({"w": nn.Parameter(torch.zeros(3, 4, 5))}, include="w", stack=True), lr=0.1)
    with pytest.raises(ValueError, match="must be a stack of 3"):
        optimizer.add_param_group({"params": [("q", nn.Parameter(torch.zeros(3, 7)))]})
    assert len(optimizer.param_groups) == 1


def test_loading_an_invalid_state_changes_nothing() -> None:
    model = network()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for wrong in ({"step": None}, {"step": -1}, {"step": 2.5}, {"active": "no"}, {"tensors": 3}):
        with pytest.raises((TypeError, ValueError), match="must be"):
            egd.load_state_dict({**egd.state_dict(), "active": False, **wrong})
        assert egd.active is True
    with pytest.raises(TypeError, match="state_dict must be a mapping"):
        egd.load_state_dict(None)  # type: ignore[arg-type]


def test_egd_refuses_the_state_of_another_transform() -> None:
    model = network()
    saved = eg.EGD(model.parameters(), lr=0.1, transform=eg.GrokfastEMA()).state_dict()
    with pytest.raises(ValueError, match="same transform"):
        eg.EGD(model.parameters(), lr=0.1, transform=eg.Momentum()).load_state_dict(saved)


@pytest.mark.parametrize("wrap", [lambda m: torch.compile(nn.DataParallel(m), backend="eager"), nn.DataParallel])
def test_names_are_those_of_the_bare_model(wrap: Any) -> None:
    model = nn.ModuleDict({"encoder": network()})
    expected = [entry.name for entry in eg.matrices(model)]
    assert [entry.name for entry in eg.matrices(wrap(model))] == expected
    assert [entry.name for entry in eg.matrices(nn.ModuleDict({"encoder": wrap(model["encoder"])}))] == expected


def test_a_name_with_pattern_characters_matches_itself() -> None:
    weights = {"a[0]": torch.zeros(2, 2), "a0": torch.zeros(2, 2)}
    assert [entry.name for entry in eg.matrices(weights, include="a[0]").taken] == ["a[0]", "a0"]


def test_unsupported_dtypes_are_refused_before_the_first_step() -> None:
    model = network(dtype=torch.float64)
    with pytest.raises(ValueError, match=r"'0.weight' of torch.float64: rtol must be >= 5e-07 for method 'eigh'"):
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, eg.Polar(method="eigh"))
    mixed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, dtype=torch.complex64), nn.Linear(3, 3))
    with pytest.raises(TypeError, match=r"got '1.weight' of torch.complex64"):
        eg.attach(torch.optim.SGD(mixed.parameters(), lr=0.1), mixed, eg.Momentum())
    with pytest.raises(TypeError, match="float8"):
        eg.matrices({"w": torch.zeros(2, 2).to(torch.float8_e4m3fn)}, include="w")


def test_spectra_are_those_of_unscaled_gradients_while_egd_is_off() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    egd = eg.attach(optimizer, model, spectrum_every=1)
    egd.off()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss_of(model)).backward()
    scaled = model[0].weight.grad.clone()
    scaler.step(optimizer)
    torch.testing.assert_close(egd.spectrum()["0.weight"][0].values, torch.linalg.svdvals(scaled.double() / 1024))


def test_numpy_metrics_keep_their_precision() -> None:
    model = network()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=eg.Until(0.85))
    assert egd.observe(np.float32(0.85)) is True
    assert egd.observe(np.float64(0.8500001)) is False


@pytest.mark.skipif(not hasattr(torch.zeros(1), "grad_dtype"), reason="this torch has no grad_dtype")
def test_a_memory_has_the_dtype_of_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    optimizer = torch.optim.SGD([weight], lr=0.1)
    egd = eg.attach(optimizer, eg.matrices({"w": weight}, include="w"), eg.Momentum())
    assert egd.state_dict()["tensors"]["w"]["0.mean"].dtype == torch.float32


def test_an_overflow_inside_the_chain_does_not_stay_in_the_memory() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    plan, state = eg.matrices({"w": weight}, include="w"), None
    for value in (3e38, -3e38, 1.0, 1.0):
        weight.grad = torch.full((2, 2), value)
        state = eg.equalize_(plan, eg.Momentum(0.4), state=state)
        assert torch.isfinite(state.tensors["w"]["0.mean"]).all()


def test_a_memory_stays_with_its_parameter_when_groups_change() -> None:
    model = network()
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second]}, {"params": model.parameters()}], lr=1.0)
    eg.attach(optimizer, model, eg.Momentum(0.5))
    for _ in range(2):
        first.grad, second.grad = torch.full((2,), 8.0), torch.full((2,), 1.0)
        loss_of(model).backward()
        optimizer.step()
    del optimizer.param_groups[0]
    second.grad = torch.full((2,), 1.0)
    optimizer.step()
    torch.testing.assert_close(second.grad, torch.full((2,), 0.875))


def test_custom_transforms_are_applied_in_order() -> None:
    class Sign(MatrixTransform):
        def __call__(self, G: Tensor, site: Site) -> Tensor:
            return G.sign()

    class Twice(ElementwiseTransform):
        def start(self, grad: Tensor, stack: int | None) -> Memory:
            return {}

        def __call__(self, grad: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
            return 2 * grad, memory

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, [Sign(), Twice()])
    assert "Sign() then Twice()" in str(egd.plan)
    loss_of(model).backward()
    expected = 2 * model[0].weight.grad.sign()
    optimizer.step()
    assert torch.equal(model[0].weight.grad, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: eg.Polar(rtol="x"),
        lambda: eg.Polar(floor=None, rtol=True),
        lambda: eg.Polar(compute=[]),
        lambda: eg.RowNorm(None),
        lambda: eg.LowRankPolar("3"),
        lambda: eg.LowRankPolar(3, seed="x"),
        lambda: eg.LowRankPolar(3, cap="yes"),
        lambda: eg.Momentum(None),
        lambda: eg.Momentum(plan=network()),
        lambda: eg.GrokfastEMA(alpha="x"),
        lambda: eg.GrokfastMA(lamb=None),
        lambda: eg.Until(0.9, resume="yes"),
        lambda: eg.Until("0.9"),
        lambda: eg.polar(torch.eye(2), rtol=None, floor="x"),
        lambda: eg.polar_lowrank(torch.eye(2), "1"),
        lambda: eg.polar_lowrank(torch.eye(2), 1, seed=None),
        lambda: eg.matrices(network(), split=5),
        lambda: eg.matrices(network(), split={"0.weight": 2.5}),
        lambda: eg.matrices(network()).groups(taken="x"),
        lambda: eg.equalize_(eg.matrices(network()), state="x"),
        lambda: eg.EGD(network().parameters(), lr="x"),
        lambda: eg.EGD(network().parameters(), lr=0.1, momentum=None),
        lambda: eg.EGD([{"params": network().parameters(), "lr": -1}], lr=0.1),
        lambda: eg.attach(torch.optim.SGD((m := network()).parameters(), lr=0.1), m, decay_before="x"),
        lambda: eg.attach(torch.optim.SGD((m := network()).parameters(), lr=0.1), m).on("x"),
        lambda: eg.attach(torch.optim.SGD((m := network()).parameters(), lr=0.1), m, until=eg.Until(1)).observe("x"),
    ],
)
def test_wrong_types_raise_errors_with_rule_value_and_way_out(make: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"must .*, got .*;"):
        make()


# -- found by first-time users ---------------------------------------------------------------------------------------


def test_a_removed_attachment_is_inactive() -> None:
    model = network()
    with eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=eg.Until(0.9)) as egd:
        assert egd.active is True
    assert egd.active is False
    assert egd.observe(0.1) is False
    assert egd.state_dict()["active"] is True  # the setting that a resumed run starts with
    assert "removed from SGD, was active=True" in repr(egd)
    with pytest.raises(RuntimeError, match="attach again"):
        egd.on()


def test_a_large_decay_that_stays_after_the_switch_off_warns() -> None:
    model = network()
    plan = eg.matrices(model)
    optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.03}), lr=0.1)
    with pytest.warns(UserWarning, match="weight_decay=0.03 .* stays after the switch-off"):
        eg.attach(optimizer, plan, until=eg.Until(0.95))
    for settings in ({"left": {"weight_decay": 0.03}}, {"taken": {"weight_decay": 1e-4}}):
        eg.attach(torch.optim.SGD(plan.groups(**settings), lr=0.1), plan, until=eg.Until(0.95))


def test_a_module_selects_its_parameters() -> None:
    model = network()
    assert [entry.name for entry in eg.matrices(model, head=model[2]).taken] == ["0.weight", "4.weight"]
    with pytest.raises(ValueError, match="got another Linear"):
        eg.matrices(model, include=nn.Linear(2, 2))


def test_spectrum_is_refused_where_none_is_stored() -> None:
    model = network()
    with pytest.raises(RuntimeError, match="spectrum_every=0"):
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model).spectrum()


def test_egd_refuses_a_model() -> None:
    with pytest.raises(TypeError, match="got Sequential"):
        eg.EGD(network(), lr=0.1)


def test_a_stack_of_vectors_is_left_with_its_reason() -> None:
    weights = {"v": torch.zeros(4, 3), "w": torch.zeros(4, 3, 2)}
    assert "1-D without the stack's axis" in str(eg.matrices(weights, include="w", stack=True))


# -- found by a second review ----------------------------------------------------------------------------------------


def test_egd_resumes_through_torchs_checkpoint_helpers(tmp_path: Any) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def begin() -> tuple[nn.Module, eg.EGD]:
        model = network()
        return model, eg.EGD(eg.matrices(model), lr=0.1, momentum=0.9, transform=[eg.GrokfastEMA(), eg.Polar()])

    model, optimizer = begin()
    train(model, optimizer, 3)
    twin, twin_optimizer = begin()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch, without a process group
        checkpoint.save({"o": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=tmp_path / "saved")
        state = {"o": get_optimizer_state_dict(twin, twin_optimizer)}
        checkpoint.load(state, checkpoint_id=tmp_path / "saved")
        set_optimizer_state_dict(twin, twin_optimizer, state["o"])
    twin.load_state_dict(model.state_dict())
    train(model, optimizer, 3, start=3)
    train(twin, twin_optimizer, 3, start=3)
    assert same(model, twin)


def test_groups_of_a_plan_keep_it_among_other_groups() -> None:
    for order in (1, -1):
        model = network()
        parts = [eg.matrices(model).groups(), [{"params": [("x", nn.Parameter(torch.zeros(3)))]}]][::order]
        optimizer = eg.EGD(parts[0] + parts[1], lr=1.0)
        loss_of(model).backward()
        before = model[4].weight.grad.clone()
        optimizer.step()
        assert torch.equal(before, model[4].weight.grad)


@pytest.mark.parametrize(
    "rebuilt",
    [
        lambda groups: groups,
        lambda groups: list(reversed(groups)),
        lambda groups: [{**group, "momentum": 0.0} for group in groups],
        lambda groups: [dict(group) for group in groups][::-1],
        lambda groups: groups[:1],
        lambda groups: groups[1:],
    ],
)
def test_groups_follow_their_plan_when_reordered_copied_or_dropped(rebuilt: Callable[[list[Any]], list[Any]]) -> None:
    """Fused attention weights are three matrices; embedding and head are left alone."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(7, 6), "attention": nn.MultiheadAttention(6, 2), "head": nn.Linear(6, 3)}
    )
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    plan = eg.matrices(model)
    optimizer = eg.EGD(rebuilt(plan.groups()), lr=1.0)
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    optimizer.step()
    for entry in plan:
        before, after = gradients[entry.name], entry.parameter.grad
        if not entry.taken or entry.parameter not in held:
            assert torch.equal(before, after), entry.name
            continue
        for one in after.chunk(len(entry.targets)):
            assert torch.allclose(one @ one.T, torch.eye(len(one)), atol=1e-4), entry.name


def test_groups_follow_their_plan_after_another_optimizer_used_them() -> None:
    """torch replaces the parameters of a group by a plain list."""
    model = network()
    groups = eg.matrices(model).groups()
    torch.optim.SGD(groups, lr=0.1)
    optimizer = eg.EGD(groups, lr=1.0)
    loss_of(model).backward()
    before = model[4].weight.grad.clone()
    optimizer.step()
    assert torch.equal(before, model[4].weight.grad), "the head is left alone"


def test_each_group_follows_its_own_plan() -> None:
    model = network()
    first, second = (eg.matrices(model, include=f"{index}.weight") for index in (0, 2))
    optimizer = eg.EGD([first.groups()[0]], lr=1.0)
    optimizer.add_param_group(second.groups()[0])
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group(second.groups()[0])
    optimizer.load_state_dict(optimizer.state_dict())
    loss_of(model).backward()
    optimizer.step()
    for index in (0, 2):
        grad = model[index].weight.grad
        values = torch.linalg.svdvals(grad)
        assert torch.allclose(values[values > 0.5], torch.ones(1), atol=1e-4)
        assert (values > 0.5).sum() == torch.linalg.matrix_rank(grad)


def test_models_with_equal_names_have_separate_memories() -> None:
    chain = [eg.Momentum(0.5), eg.Polar()]
    together, alone = [network(0), network(1)], [network(0), network(1)]
    one = eg.EGD([group for model in together for group in eg.matrices(model).groups()], lr=0.1, transform=chain)
    each = [eg.EGD(eg.matrices(model).groups(), lr=0.1, transform=chain) for model in alone]
    for _ in range(3):
        one.zero_grad()
        for model in together:
            loss_of(model).backward()
        one.step()
        for model, own in zip(alone, each, strict=True):
            own.zero_grad()
            loss_of(model).backward()
            own.step()
    assert all(same(left, right) for left, right in zip(together, alone, strict=True))


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        eg.EGD(eg.Plan(()), lr=0.1)


def test_a_group_added_later_follows_its_plan() -> None:
    model = network()
    taken, left = eg.matrices(model).groups()
    optimizer = eg.EGD([taken], lr=1.0)
    optimizer.add_param_group(left)
    loss_of(model).backward()
    before = model[4].weight.grad.clone()
    optimizer.step()
    assert torch.equal(before, model[4].weight.grad), "the head is left alone"


def test_a_stacked_group_with_equalize_false_is_filtered_but_not_equalised() -> None:
    weights = {"w": nn.Parameter(torch.zeros(3, 4, 5))}
    plan = eg.matrices(weights, include="w", stack=True)
    optimizer = eg.EGD(plan, lr=1.0, transform=[eg.Momentum(0.5), eg.Polar()])
    optimizer.param_groups[0]["equalize"] = False
    weights["w"].grad = torch.ones(3, 4, 5)
    optimizer.step()
    assert torch.equal(weights["w"].detach(), torch.full((3, 4, 5), -0.5))


def test_memories_of_removed_parameters_are_not_saved() -> None:
    model = network()
    held = list(model.parameters())
    chain = [eg.Momentum(), eg.Polar()]
    optimizer = torch.optim.SGD([{"params": held[:2]}, {"params": held[2:]}], lr=0.1)
    egd = eg.attach(optimizer, model, chain)
    train(model, optimizer, 1)
    del optimizer.param_groups[0]
    with pytest.warns(UserWarning, match="left the optimizer"):
        train(model, optimizer, 1)
    eg.attach(torch.optim.SGD(held[2:], lr=0.1), model, chain).load_state_dict(egd.state_dict())


def test_a_removed_attachment_no_longer_reads_the_optimizer() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eg.attach(optimizer, model, [eg.Momentum(), eg.Polar()]) as egd:
        train(model, optimizer, 1)
    optimizer.param_groups.clear()
    assert set(egd.state_dict()["tensors"]) == {name for name, _ in model.named_parameters()}


def test_a_group_with_too_few_names_is_accepted() -> None:
    model = network()
    plan = eg.matrices(model)
    optimizer = torch.optim.SGD(plan.groups(), lr=0.1)
    eg.attach(optimizer, plan)
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(3)))
    train(model, optimizer, 1)


@pytest.mark.skipif(not hasattr(torch.zeros(1), "grad_dtype"), reason="this torch has no grad_dtype")
def test_egd_loads_its_memory_in_the_dtype_of_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.bfloat16))
    weight.grad_dtype = torch.float32
    optimizer = eg.EGD([weight], lr=0.1, transform=eg.Momentum())
    weight.grad = torch.randn(4, 6)
    optimizer.step()
    mean = optimizer.state[weight]["egd.0.mean"]
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(optimizer.state[weight]["egd.0.mean"], mean)


def test_a_wrapper_around_the_step_of_a_class_changes_nothing() -> None:
    class Derived(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    model = network()
    optimizer = Derived(model.parameters(), lr=0.1)
    step = Derived.step
    Derived.step = functools.wraps(step)(lambda *args, **kwargs: step(*args, **kwargs))  # type: ignore[method-assign]
    egd = eg.attach(optimizer, model, [eg.GrokfastEMA(), eg.Polar()])
    train(model, optimizer, 1)
    assert egd.state_dict()["step"] == 1


def test_a_refused_group_does_not_claim_its_name() -> None:
    weights = {"w": nn.Parameter(torch.zeros(3, 4, 5))}
    optimizer = eg.EGD(eg.matrices(weights, include="w", stack=True), lr=0.1, transform=eg.RowNorm())
    with pytest.raises(ValueError, match="must be a stack of 3"):
        optimizer.add_param_group({"params": [("q", nn.Parameter(torch.zeros(3, 7)))]})
    optimizer.add_param_group({"params": [("q", nn.Parameter(torch.zeros(3)))]})
    assert [entry.name for entry in optimizer._entries()] == ["w", "q"]


def test_a_mean_in_float16_does_not_overflow() -> None:
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.float16))
    plan, state = eg.matrices({"w": weight}, include="w"), None
    for _ in range(100):
        weight.grad = torch.full((2, 2), 1000.0, dtype=torch.float16)
        state = eg.equalize_(plan, eg.GrokfastMA(100, 1.0, warmup=False), state=state)
    torch.testing.assert_close(weight.grad, torch.full((2, 2), 2000.0, dtype=torch.float16), rtol=1e-2, atol=0)


def test_filters_alone_do_not_warn_about_matrices_without_gradients() -> None:
    model = network()
    model[4].bias.grad = torch.ones(3)
    eg.equalize_(eg.matrices(model), eg.Momentum(0.5))  # warnings are errors here
    assert torch.equal(model[4].bias.grad, torch.full((3,), 0.5))


@pytest.mark.parametrize("points", [2, 8])
@pytest.mark.parametrize("transform", [None, eg.Polar(compute=torch.bfloat16)])
def test_the_rounding_noise_of_autocast_does_not_come_out_at_full_strength(transform: Any, points: int) -> None:
    """A gradient of few points has few directions; bfloat16 adds noise along all others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model) if transform is None else eg.attach(optimizer, model, transform)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(points, 64)), torch.arange(points))
    loss.backward()
    optimizer.step()
    values = torch.linalg.svdvals(model[2].weight.grad.double())
    assert values[points - 1] >= 0.65
    assert values[points] <= (0.2 if transform is None else 1e-6)


# -- found by an attack without mercy --------------------------------------------------------------------------------


def test_names_that_collide_without_their_wrapper_have_separate_memories() -> None:
    """`torch.compile` puts `_orig_mod` into names; a module may have that name by itself."""
    weights = nn.ModuleDict({"_orig_mod": nn.ModuleDict({"x": nn.Linear(6, 6)}), "x": nn.Linear(6, 6)})
    optimizer = torch.optim.SGD(weights.parameters(), lr=1.0)
    egd = eg.attach(optimizer, eg.matrices(weights, include="*"), eg.Momentum(0.5))
    first, second = weights["_orig_mod"]["x"].weight, weights["x"].weight
    for value in (2.0, 4.0):
        first.grad, second.grad = torch.full((6, 6), value), torch.full((6, 6), -value)
        optimizer.step()
    assert torch.equal(second.grad, -first.grad)
    assert len(egd.state_dict()["tensors"]) == 4


def test_a_first_positional_argument_that_is_no_closure_does_not_switch_egd_off() -> None:
    class Verbose(torch.optim.SGD):
        def step(self, verbose: Any = False) -> None:  # type: ignore[override]
            super().step()

    model = network()
    optimizer = Verbose(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    for verbose in (True, False, 3, "yes", loss_of(model)):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step(verbose)
        values = torch.linalg.svdvals(model[0].weight.grad)
        torch.testing.assert_close(values, torch.ones_like(values))
