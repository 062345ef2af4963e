"""`optimizer.state_dict()` carries the state of an attachment, and a run that resumes without it says so."""

from __future__ import annotations

import copy
import io
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from toy import network, same, train

import egalitarian as eg

CHAINS: dict[str, Any] = {"polar": eg.Polar(), "lowrank": eg.LowRankPolar(2), "filtered": [eg.GrokfastEMA(0.9), eg.Polar()]}
HOSTS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
Run = tuple[nn.Module, torch.optim.Optimizer, eg.Attachment]


def begin(host: str = "adamw", chain: Any = CHAINS["filtered"], **options: Any) -> Run:
    model = network()
    optimizer = HOSTS[host](model.parameters())
    return model, optimizer, eg.attach(optimizer, model, chain, **options)


def through_a_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def without_egd(state_dict: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state_dict.items() if key != "egalitarian"}


# -- it carries the state ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("on", [True, False])
def test_model_and_optimizer_are_enough_to_resume_bitwise(host: str, chain: Any, on: bool) -> None:
    model, optimizer, egd = begin(host, chain)
    train(model, optimizer, 3)
    egd.on() if on else egd.off()
    saved = through_a_file([model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 3, start=3)
    twin, twin_optimizer, twin_egd = begin(host, chain)
    twin.load_state_dict(saved[0])
    twin_optimizer.load_state_dict(saved[1])
    assert twin_egd.active is on
    train(twin, twin_optimizer, 3, start=3)
    assert same(model, twin)
    assert twin_egd.state_dict()["step"] == egd.state_dict()["step"] == 6


def test_nothing_else_in_the_state_dict_differs_from_that_of_the_bare_optimizer() -> None:
    model, optimizer, egd = begin(chain=eg.Identity())
    bare_model, bare = network(), HOSTS["adamw"]
    other = bare(bare_model.parameters())
    train(model, optimizer, 2)
    train(bare_model, other, 2)
    buffers = [io.BytesIO(), io.BytesIO()]
    torch.save(without_egd(optimizer.state_dict()), buffers[0])
    torch.save(other.state_dict(), buffers[1])
    assert buffers[0].getvalue() == buffers[1].getvalue()
    egd.remove()
    assert set(optimizer.state_dict()) == {"state", "param_groups"}


def test_a_bare_optimizer_loads_the_checkpoint_and_ignores_the_rest() -> None:
    model, optimizer, egd = begin()
    train(model, optimizer, 2)
    egd.off()
    bare_model = copy.deepcopy(model)
    bare = HOSTS["adamw"](bare_model.parameters())
    bare.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert set(bare.state_dict()) == {"state", "param_groups"}
    train(model, optimizer, 2, start=2)
    train(bare_model, bare, 2, start=2)
    assert same(model, bare_model)


def test_without_save_with_optimizer_the_state_dict_is_the_bare_one() -> None:
    model, optimizer, _ = begin(save_with_optimizer=False)
    train(model, optimizer, 2)
    assert set(optimizer.state_dict()) == {"state", "param_groups"}
    _, other, _ = begin()
    train(model, other, 1)
    optimizer.load_state_dict(other.state_dict())  # it does not read the other's state
    assert optimizer._egalitarian.state_dict()["step"] == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_save_with_optimizer_is_a_bool(value: Any) -> None:
    with pytest.raises(ValueError, match="save_with_optimizer must be True or False, got"):
        begin(save_with_optimizer=value)


def test_two_optimizers_carry_a_state_each() -> None:
    one, one_optimizer, one_egd = begin()
    other, other_optimizer, other_egd = begin("sgd", eg.Polar())
    train(one, one_optimizer, 2)
    train(other, other_optimizer, 3)
    other_egd.off()
    saved = through_a_file([one_optimizer.state_dict(), other_optimizer.state_dict()])
    (_, first, first_egd), (_, second, second_egd) = begin(), begin("sgd", eg.Polar())
    first.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    assert (first_egd.active, first_egd.state_dict()["step"]) == (True, 2)
    assert (second_egd.active, second_egd.state_dict()["step"]) == (False, 3)
    assert one_egd.active is True


def test_a_state_that_does_not_fit_leaves_optimizer_and_attachment_as_they_were() -> None:
    model, optimizer, _ = begin("momentum", eg.Polar())
    train(model, optimizer, 3)
    saved = optimizer.state_dict()
    other, other_optimizer, other_egd = begin("momentum", eg.LowRankPolar(2))
    train(other, other_optimizer, 1)
    before = copy.deepcopy(other_optimizer.state_dict())
    with pytest.raises(ValueError, match=r"same transform .*; attach with .*, or attach with save_with_optimizer=False"):
        other_optimizer.load_state_dict(saved)
    with pytest.raises(ValueError, match="different number of parameter groups"):  # torch's, after our part was read
        other_optimizer.load_state_dict({**before, "param_groups": []})
    assert other_egd.state_dict()["step"] == 1
    after = other_optimizer.state_dict()
    assert torch.equal(after["state"][0]["momentum_buffer"], before["state"][0]["momentum_buffer"])
    assert "egalitarian" in saved, "a load leaves the caller's dict alone"


def test_a_state_goes_through_a_round_trip_before_the_first_step() -> None:
    """Accelerate does this in `prepare`, and Lightning moves states between devices so."""
    model, optimizer, egd = begin()
    egd.off()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert egd.active is False
    train(model, optimizer, 1)


def test_wrappers_without_hooks_for_it_carry_the_state_of_the_optimizer_inside() -> None:
    """As Lookahead of pytorch_optimizer: an Optimizer that has hooks around its step, and none around its state_dict."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.defaults = optimizer, optimizer.defaults
            self.state, self.param_groups = optimizer.state, optimizer.param_groups
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
            self._patch_step_function()

        def step(self, closure: Any = None) -> Any:
            return self.optimizer.step(closure)

        def state_dict(self) -> dict[str, Any]:
            return {"base": self.optimizer.state_dict()}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.optimizer.load_state_dict(state_dict["base"])

    def wrapped() -> Run:
        model = network()
        optimizer = Wrapper(HOSTS["adamw"](model.parameters()))
        return model, optimizer, eg.attach(optimizer, model)

    model, optimizer, egd = wrapped()
    train(model, optimizer, 3)
    egd.off()
    _, other_optimizer, other = wrapped()
    other_optimizer.load_state_dict(optimizer.state_dict())
    assert (other.active, other.state_dict()["step"]) == (False, 3)


# -- a run that resumes without it says so -----------------------------------------------------------------------------

WARNING = "continues from earlier steps, but EGD starts at step 0"


@pytest.mark.parametrize("host", HOSTS)
def test_an_optimizer_that_is_loaded_without_it_warns_once(host: str) -> None:
    """As an older checkpoint is, or one of torch.distributed.checkpoint."""
    model, optimizer, _ = begin(host)
    train(model, optimizer, 2)
    twin, twin_optimizer, _ = begin(host)
    twin_optimizer.load_state_dict(without_egd(optimizer.state_dict()))
    with pytest.warns(UserWarning, match=WARNING) as caught:
        train(twin, twin_optimizer, 3)
    assert len(caught) == 1


@pytest.mark.parametrize("host", ["momentum", "adamw"])
@pytest.mark.parametrize("save_with_optimizer", [True, False])
def test_an_optimizer_that_has_made_steps_before_attach_warns(host: str, save_with_optimizer: bool) -> None:
    model = network()
    optimizer = HOSTS[host](model.parameters())
    train(model, optimizer, 2)
    eg.attach(optimizer, model, save_with_optimizer=save_with_optimizer)
    with pytest.warns(UserWarning, match=WARNING):
        train(model, optimizer, 1)


def test_sgd_that_has_loaded_a_checkpoint_of_egd_before_attach_warns() -> None:
    """SGD keeps no trace of its steps, but carries the count of EGD along in its groups."""
    model = network()
    first = eg.EGD(eg.matrices(model), lr=0.1)
    train(model, first, 2)
    optimizer = HOSTS["sgd"](model.parameters())
    optimizer.load_state_dict(through_a_file(first.state_dict()))
    eg.attach(optimizer, model)
    with pytest.warns(UserWarning, match=WARNING):
        train(model, optimizer, 1)


@pytest.mark.parametrize("order", ["optimizer first", "attachment first"])
def test_loading_the_state_of_the_attachment_by_itself_does_not_warn(order: str) -> None:
    model, optimizer, egd = begin()
    train(model, optimizer, 2)
    twin, twin_optimizer, twin_egd = begin()
    loads = [
        lambda: twin_optimizer.load_state_dict(without_egd(optimizer.state_dict())),
        lambda: twin_egd.load_state_dict(egd.state_dict()),
    ]
    for load in loads if order == "optimizer first" else reversed(loads):
        load()
    train(twin, twin_optimizer, 1, start=2)
    assert twin_egd.state_dict()["step"] == 3


@pytest.mark.parametrize("decide", [eg.Attachment.on, eg.Attachment.off])
def test_switching_by_hand_says_that_the_start_is_meant(decide: Any) -> None:
    model = network()
    optimizer = HOSTS["adamw"](model.parameters())
    train(model, optimizer, 2)
    decide(eg.attach(optimizer, model))
    train(model, optimizer, 1)


def test_attaching_again_does_not_warn() -> None:
    model, optimizer, egd = begin()
    train(model, optimizer, 2)
    egd.remove()
    eg.attach(optimizer, model)
    train(model, optimizer, 1)


@pytest.mark.parametrize("kind", ["Adagrad", "RMSprop", "NAdam", "Rprop", "ASGD", "LBFGS"])
def test_a_fresh_optimizer_does_not_warn(kind: str) -> None:
    """Adagrad has a state from the start, ASGD a count in it; LBFGS counts before it calls its closure."""
    model = network()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    eg.attach(optimizer, model)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_torchs_checkpoint_helpers_keep_no_state_of_egd_and_a_load_says_so() -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    (model, optimizer, egd), (twin, twin_optimizer, twin_egd) = begin("momentum"), begin("momentum")
    train(model, optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch, without a process group
        saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True), egd=egd.state_dict())
        set_state_dict(
            twin, twin_optimizer, model_state_dict=saved["model"], optim_state_dict=copy.deepcopy(saved["optimizer"])
        )
    assert set(saved["optimizer"]) == {"state", "param_groups"}
    with pytest.warns(UserWarning, match=WARNING):
        train(copy.deepcopy(twin), twin_optimizer, 1)
    twin_egd.load_state_dict(saved["egd"])
    train(model, optimizer, 2, start=3)
    train(twin, twin_optimizer, 2, start=3)
    assert same(model, twin)


def test_egd_says_that_it_does_not_read_the_state_of_an_attachment() -> None:
    model, optimizer, _ = begin("sgd")
    train(model, optimizer, 1)
    other = eg.EGD(eg.matrices(model), lr=0.1)
    with pytest.warns(UserWarning, match=r"attach to torch\.optim\.SGD instead"):
        other.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(("rule", "warns"), [(None, True), (eg.Until(0.9), False)])
def test_a_switch_off_by_a_rule_that_is_missing_now_warns(rule: eg.Until | None, warns: bool) -> None:
    model = network()
    first = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=eg.Until(0.9))
    first.observe(0.95)
    second = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, until=rule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second.load_state_dict(first.state_dict())
    assert [("call on()" in str(each.message)) for each in caught] == [True] * warns
    assert not second.active


def test_a_switch_off_by_hand_is_restored_without_a_word() -> None:
    model = network()
    first, second = (eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model) for _ in range(2))
    first.off()
    second.load_state_dict(first.state_dict())
    assert not second.active


# -- loads that fail ---------------------------------------------------------------------------------------------------


def test_after_a_load_that_failed_a_fresh_start_does_not_warn() -> None:
    model, optimizer, _ = begin("sgd", eg.Polar())
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    train(model, optimizer, 1)


WRONG: dict[str, tuple[str, Any, str]] = {
    "no names": ("matrices", None, "matrices must be a list of names and shapes"),
    "a name": ("matrices", "0.weight", "matrices must be a list of names and shapes"),
    "nested names": ("matrices", [["0.weight"]], "matrices must be a list of names and shapes"),
    "no tiers": ("tiers", None, "tiers must be a mapping"),
    "a list of tiers": ("tiers", ["exact"], "tiers must be a mapping"),
    "no memories": ("tensors", {"0.weight": 3}, "the memory of '0.weight' must be a mapping"),
    "a number": ("tensors", {"0.weight": {"0.mean": 1.0}}, "must be a dense, real tensor"),
    "sparse": (
        "tensors",
        {"0.weight": {"0.mean": torch.zeros(8, 6).to_sparse()}},
        "must be a dense, real tensor",
    ),
    "complex": ("tensors", {"0.weight": {"0.mean": torch.zeros(8, 6) * 1j}}, "must be a dense, real tensor"),
    "without values": (
        "tensors",
        {"0.weight": {"0.mean": torch.zeros(8, 6, device="meta")}},
        "must be a dense, real tensor",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("door", ["attachment", "optimizer"])
def test_a_state_that_was_edited_is_an_error_and_changes_nothing(name: str, door: str) -> None:
    key, value, said = WRONG[name]
    model, optimizer, _ = begin()
    train(model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    edited = saved["egalitarian"]
    edited[key] = {**edited[key], **value} if key == "tensors" else value
    _, other, fresh = begin()
    with pytest.raises(TypeError, match=rf"{said}, got .*; load what state_dict\(\) returned"):
        fresh.load_state_dict(edited) if door == "attachment" else other.load_state_dict(saved)
    assert fresh.state_dict()["step"] == 0
    assert not other.state


@pytest.mark.parametrize("door", ["attachment", "optimizer"])
def test_where_warnings_are_errors_the_one_about_a_missing_rule_changes_nothing(door: str) -> None:
    model, optimizer, egd = begin(until=eg.Until(0.9))
    train(model, optimizer, 2)
    egd.observe(0.95)
    _, other, fresh = begin()
    with pytest.raises(UserWarning, match="switched off by until"):
        fresh.load_state_dict(egd.state_dict()) if door == "attachment" else other.load_state_dict(optimizer.state_dict())
    assert (fresh.active, fresh.state_dict()["step"]) == (True, 0)
    assert not other.state


def test_a_removed_attachment_loads_nothing() -> None:
    model = network()
    with eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model) as egd:
        saved = egd.state_dict()
    with pytest.raises(RuntimeError, match=r"needs an attached EGD, got one that was removed; attach again"):
        egd.load_state_dict(saved)
