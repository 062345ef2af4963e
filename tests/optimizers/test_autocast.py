"""`precision="auto"` learns autocast once, from a forward pass: when, from whom, and what is left of the hook."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import batch, hidden_updates, loss_of, network, parameters, singular_values

import egalitarian as eg

AUTO = eg.Polar(precision="auto")
BFLOAT16 = torch.bfloat16


def begin(transform: Any = AUTO) -> tuple[nn.Sequential, torch.optim.Optimizer, eg.Attachment]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, eg.attach(optimizer, model, transform)


def forward(model: nn.Module, autocast: bool, dtype: torch.dtype = BFLOAT16) -> Tensor:
    with torch.autocast("cpu", dtype, enabled=autocast):
        return loss_of(model)


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def is_coarse(updates: list[Tensor]) -> bool:
    """Whether some singular value is clearly not 1; all are within the promise of the coarse tier."""
    values = torch.cat([singular_values(update) for update in updates])
    assert values.max() <= 1.25
    return bool((values - 1).abs().max() > 1e-2)


# -- what it learns ----------------------------------------------------------------------------------------------------


def test_autocast_is_unknown_then_learnt_and_the_hooks_are_gone() -> None:
    model, optimizer, egd = begin()
    assert hooks(model) == 2, "one per module that is taken, none on the head"
    assert "autocast unknown" in str(egd.plan)
    forward(model, autocast=True).backward()
    assert hooks(model) == 0
    assert egd.plan.header.endswith("autocast to half precision")
    before = parameters(model)
    optimizer.step()
    assert is_coarse(hidden_updates(model, before))


def test_without_autocast_it_stays_exact() -> None:
    model, optimizer, egd = begin()
    forward(model, autocast=False).backward()
    assert "no autocast" in str(egd.plan)
    before = parameters(model)
    optimizer.step()
    assert not is_coarse(hidden_updates(model, before))


@pytest.mark.parametrize(("dtype", "tier"), [(torch.bfloat16, "coarse"), (torch.float16, "coarse")])
def test_the_plan_names_the_tier_of_every_matrix(dtype: torch.dtype, tier: str) -> None:
    model, _, egd = begin()
    assert [entry.verdict for entry in egd.plan.taken] == ["taken as 8 x 6, exact", "taken as 5 x 8, exact"]
    forward(model, autocast=True, dtype=dtype)
    assert [entry.verdict for entry in egd.plan.taken] == [f"taken as 8 x 6, {tier}", f"taken as 5 x 8, {tier}"]


def test_it_is_learnt_once() -> None:
    """A later forward pass without autocast changes nothing: the tier of a run is one."""
    model, _, egd = begin()
    forward(model, autocast=True)
    forward(model, autocast=False)
    assert "autocast to half precision" in str(egd.plan)


def test_autocast_of_another_device_is_none() -> None:
    """CUDA's state may be on while the model computes on a CPU."""
    model, _, egd = begin()
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        loss_of(model)
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert "no autocast" in str(egd.plan)


@pytest.mark.parametrize("inner", [True, False])
def test_the_innermost_context_counts(inner: bool) -> None:
    model, _, egd = begin()
    with torch.autocast("cpu", BFLOAT16, enabled=not inner):
        forward(model, autocast=inner)
    assert ("autocast to half precision" if inner else "no autocast") in str(egd.plan)


def quietly_evaluated(model: nn.Module) -> None:
    model.eval()
    forward(model, autocast=True)
    model.train()


def without_gradients(model: nn.Module) -> None:
    with torch.no_grad():
        forward(model, autocast=True)


def inferred(model: nn.Module) -> None:
    with torch.inference_mode():
        forward(model, autocast=True)


@pytest.mark.parametrize("first", [quietly_evaluated, without_gradients, inferred])
def test_a_pass_that_does_not_train_tells_nothing(first: Callable[[nn.Module], None]) -> None:
    """A validation before the first epoch may run in another precision."""
    model, _, egd = begin()
    first(model)
    assert hooks(model) == 2
    assert "autocast unknown" in str(egd.plan)
    forward(model, autocast=False)
    assert "no autocast" in str(egd.plan)


def test_the_first_of_several_modules_that_is_called_tells() -> None:
    """The others need not be called at all."""
    model, _, egd = begin()
    x, _ = batch()
    with torch.autocast("cpu", BFLOAT16):
        model[2](torch.randn(3, 8))
    assert hooks(model) == 0
    model(x)
    assert "autocast to half precision" in str(egd.plan)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0])  # type: ignore[no-any-return]


def test_a_module_that_is_never_called_is_not_waited_for() -> None:
    """`MultiheadAttention` uses the weight of its `out_proj` without calling it."""
    model = Attending()
    plan = eg.matrices(model)
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), plan)
    assert [name for name in (entry.name for entry in plan.taken) if "out_proj" in name]
    alone = Attending()
    only = eg.matrices(alone, include="attention.out_proj.weight")
    unknown = eg.attach(torch.optim.SGD(alone.parameters(), lr=0.1), only)
    for each in (model, alone):
        with torch.autocast("cpu", BFLOAT16):
            each(torch.randn(2, 4, 8)).sum().backward()
    assert "autocast to half precision" in str(egd.plan)
    assert hooks(model) == 0
    assert "autocast unknown" in str(unknown.plan), "nothing is guessed where no taken module is called"


def test_a_plan_from_a_mapping_knows_no_modules() -> None:
    model = network()
    plan = eg.matrices(dict(model.named_parameters()), include=["0.weight", "2.weight"])
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=1.0), plan)
    forward(model, autocast=True).backward()
    assert "autocast unknown" in str(egd.plan)
    assert hooks(model) == 0


@pytest.mark.parametrize(
    "transform",
    [
        eg.Polar(compute=torch.bfloat16),
        eg.Polar(precision="fast", rtol=1e-2),
        eg.Polar(precision="coarse"),
        eg.Polar(precision="auto", compute=torch.float32),
        eg.Polar(precision="auto", rtol=1e-4),
        eg.LowRankPolar(2, compute=torch.float16),
        eg.RowNorm(),
        eg.GrokfastEMA(),
    ],
    ids=repr,
)
def test_no_hook_without_a_question(transform: Any) -> None:
    """Only a precision that depends on autocast asks for it, and a cut-off that should."""
    model, optimizer, egd = begin(transform)
    assert hooks(model) == 0
    assert "autocast" not in egd.plan.header.replace("autocast:", "")
    before = parameters(model)
    forward(model, autocast=True).backward()
    optimizer.step()
    if isinstance(transform, eg.Polar) and transform.precision == "auto":
        assert not is_coarse(hidden_updates(model, before))


def test_auto_in_a_chain_asks_too() -> None:
    model, _, egd = begin([eg.Momentum(), AUTO])
    forward(model, autocast=True)
    assert "autocast to half precision" in str(egd.plan)


# -- what is left of the hook ------------------------------------------------------------------------------------------


def test_remove_drops_the_hooks() -> None:
    model, _, egd = begin()
    egd.remove()
    assert hooks(model) == 0
    forward(model, autocast=True)
    assert "autocast unknown" in str(egd.plan)


def pickled(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))


def saved(model: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_of_the_model_does_not_tell(copied: Callable[[nn.Module], Any]) -> None:
    """A copy trains on its own, for example as a target network. What stands in for the hook goes at its first call."""
    model, _, egd = begin()
    twin = copied(model)
    expected = loss_of(copy.deepcopy(network()))
    with torch.autocast("cpu", BFLOAT16, enabled=False):
        torch.testing.assert_close(loss_of(twin), expected)
    forward(twin, autocast=True)
    assert hooks(twin) == 0
    assert hooks(model) == 2
    assert "autocast unknown" in str(egd.plan)
    forward(model, autocast=False)
    assert "no autocast" in str(egd.plan)


def test_a_pass_that_computes_shapes_alone_tells_nothing() -> None:
    """Under a mapping of parameters on the meta device, as tools that count operations make it."""
    model, _, egd = begin()
    x, _ = batch()
    meta = {name: parameter.detach().to("meta") for name, parameter in model.named_parameters()}
    assert torch.func.functional_call(model, meta, x.to("meta")).device.type == "meta"
    assert "autocast unknown" in str(egd.plan)


@pytest.mark.parametrize(
    "settings", [{"lr": -1.0}, {"lr": 0.1, "transform": eg.Polar(precision="auto", method="polynomial")}]
)
def test_an_optimizer_that_is_refused_leaves_no_hook(settings: dict[str, Any]) -> None:
    model = network(dtype=torch.float64)
    with pytest.raises(ValueError, match="must be"):
        eg.EGD(eg.matrices(model), **settings)
    with pytest.raises(ValueError, match="must be"):
        eg.EGD(eg.matrices(model).groups(taken={"equalize": 3}), lr=0.1)
    assert hooks(model) == 0


def test_hooks_of_others_stay() -> None:
    model, _, _ = begin()
    seen: list[str] = []
    model[0].register_forward_pre_hook(lambda module, args: seen.append("other"))
    forward(model, autocast=False)
    forward(model, autocast=False)
    assert hooks(model) == 1
    assert seen == ["other", "other"]


def test_a_compiled_forward_does_not_tell_and_does_not_break() -> None:
    model, optimizer, egd = begin()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x, y = batch()
    for _ in range(2):
        with torch.autocast("cpu", BFLOAT16):
            loss = nn.functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert "autocast unknown" in str(egd.plan)
    forward(model, autocast=True)
    assert "autocast to half precision" in str(egd.plan)


# -- EGD ---------------------------------------------------------------------------------------------------------------


def egd_for(model: nn.Module) -> eg.EGD:
    return eg.EGD(eg.matrices(model), lr=1.0)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    before = parameters(model)
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    return hidden_updates(model, before)


def test_egd_learns_as_attach_does() -> None:
    model, optimizer, _ = begin()
    twin = network()
    twin_optimizer = egd_for(twin)
    for each, its in ((model, optimizer), (twin, twin_optimizer)):
        forward(each, autocast=True).backward()
        its.step()
    assert hooks(twin) == 0
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    assert is_coarse(update(twin, twin_optimizer))


@pytest.mark.parametrize("autocast", [True, False, None])
def test_a_copy_of_egd_keeps_what_was_learnt(autocast: bool | None) -> None:
    """None: there was no forward pass yet. The copy has no hook, so it stays unknown there."""
    model = network()
    optimizer = egd_for(model)
    if autocast is not None:
        forward(model, autocast=autocast)
    for copied in (lambda both: copy.deepcopy(both), lambda both: pickle.loads(pickle.dumps(both))):
        twin, twin_optimizer = copied((model, optimizer))
        assert is_coarse(update(twin, twin_optimizer)) is bool(autocast)


def test_egd_from_bare_parameters_is_exact_under_autocast() -> None:
    """It knows no modules. Pass a plan."""
    model = network()
    optimizer = eg.EGD([{"params": model.parameters(), "equalize": True}], lr=1.0)
    forward(model, autocast=True).backward()
    before = parameters(model)
    optimizer.step()
    assert not is_coarse(hidden_updates(model, before))


# -- tiers in a saved state --------------------------------------------------------------------------------------------


def test_a_state_names_the_tiers() -> None:
    model, _, egd = begin()
    assert egd.state_dict()["tiers"] == {}  # not known, and not in effect
    forward(model, autocast=True)
    assert egd.state_dict()["tiers"] == {"0.weight": "coarse", "2.weight": "coarse"}
    named = begin(eg.Polar())[2].state_dict()["tiers"]
    assert named == {"0.weight": "exact", "2.weight": "exact"}  # whatever autocast does


def test_loading_into_another_tier_warns_at_the_first_step_and_once() -> None:
    model, optimizer, egd = begin()
    forward(model, autocast=True).backward()
    optimizer.step()
    state = egd.state_dict()
    twin, twin_optimizer, twin_egd = begin()
    twin_egd.load_state_dict(state)
    forward(twin, autocast=False).backward()
    message = "precision differs from that of the saved run: '0.weight' coarse then, exact now, '2.weight' coarse then"
    with pytest.warns(UserWarning, match=message):
        twin_optimizer.step()
    twin_optimizer.step()


@pytest.mark.parametrize("autocast", [True, False])
def test_loading_into_the_same_tier_is_silent(autocast: bool) -> None:
    """Although it is unknown at loading: what counts is the first step."""
    model, optimizer, egd = begin()
    forward(model, autocast=autocast).backward()
    optimizer.step()
    twin, twin_optimizer, twin_egd = begin()
    twin_egd.load_state_dict(egd.state_dict())
    forward(twin, autocast=autocast).backward()
    twin_optimizer.step()


def test_a_state_from_before_the_first_forward_is_no_saved_run() -> None:
    """A run that goes back to its beginning gets no warning, although autocast was unknown then."""
    model, optimizer, egd = begin()
    state = egd.state_dict()
    forward(model, autocast=True).backward()
    egd.load_state_dict(state)
    optimizer.step()
    assert set(egd.state_dict()["tiers"].values()) == {"coarse"}


def test_steps_without_a_forward_pass_that_tells_have_their_tier_in_the_state() -> None:
    model, optimizer, egd = begin()
    model.eval()
    forward(model, autocast=True).backward()
    optimizer.step()
    assert egd.state_dict()["tiers"] == {"0.weight": "exact", "2.weight": "exact"}


def test_a_state_of_an_older_version_has_no_tiers() -> None:
    model, optimizer, egd = begin()
    state = egd.state_dict()
    del state["tiers"]
    egd.load_state_dict(state)
    forward(model, autocast=True).backward()
    optimizer.step()


def test_a_grad_scaler_makes_it_coarse_whatever_autocast_was() -> None:
    model, optimizer, egd = begin()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(forward(model, autocast=False)).backward()
    before = parameters(model)
    scaler.step(optimizer)
    assert is_coarse(hidden_updates(model, before))
    assert set(egd.state_dict()["tiers"].values()) == {"coarse"}


def test_half_precision_parameters_are_coarse() -> None:
    model = network(dtype=torch.bfloat16)
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=1.0), model)
    assert set(egd.state_dict()["tiers"].values()) == {"coarse"}


@pytest.mark.parametrize("attached", [True, False])
def test_capture_changes_nothing_on_a_cpu(attached: bool) -> None:
    ends = []
    for capture in (True, False):
        model = network()
        if attached:
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            egd = eg.attach(optimizer, model, capture=capture)
        else:
            optimizer = eg.EGD(eg.matrices(model), lr=0.1, capture=capture)
        for _ in range(5):
            update(model, optimizer)
        ends.append(parameters(model))
        assert not attached or "graph" not in str(egd.plan)
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("capture", [1, "yes", None])
def test_capture_is_a_bool(capture: Any) -> None:
    model = network()
    with pytest.raises(ValueError, match="capture must be"):
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, capture=capture)
    with pytest.raises(ValueError, match="capture must be"):
        eg.EGD(model.parameters(), lr=0.1, capture=capture)


@pytest.mark.parametrize(
    "transform",
    [eg.Polar(), eg.Polar(precision="fast"), eg.Polar(floor=1e-6, precision="auto"), eg.LowRankPolar(2), eg.Natural()],
    ids=repr,
)
def test_a_cut_off_for_float32_under_autocast_warns_once(transform: Any) -> None:
    model, optimizer, _ = begin(transform)
    forward(model, True).backward()
    with pytest.warns(UserWarning, match="raises to full strength; pass it compute=torch.bfloat16") as caught:
        optimizer.step()
    assert len(caught) == 1
    forward(model, True).backward()
    optimizer.step()


@pytest.mark.parametrize("transform", [eg.Polar(compute=torch.bfloat16), eg.Polar(precision="coarse"), eg.Polar(rtol=0.01)])
def test_a_cut_off_that_knows_of_autocast_does_not_warn(transform: Any) -> None:
    model, optimizer, _ = begin(transform)
    forward(model, True).backward()
    optimizer.step()


def test_a_scaler_sets_the_cut_off_so_that_nothing_warns() -> None:
    model, optimizer, _ = begin(eg.Polar())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(forward(model, True, torch.float16)).backward()
    scaler.step(optimizer)
    scaler.update()


def test_egd_warns_as_attach_does() -> None:
    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.1, transform=eg.Polar())
    forward(model, True).backward()
    with pytest.warns(UserWarning, match="raises to full strength"):
        optimizer.step()
