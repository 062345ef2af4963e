"""The forward pass that finds the head leaves no trace, and says what is wrong with an example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import Policy, UNet, image, rows
from torch import Tensor, nn
from toy import network

import egalitarian as eg


class Traced(nn.Module):
    """Whatever a forward pass may leave behind: statistics, counts, random numbers, and words about its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.fc = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(2))
        self.fails = False

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Any]:
        self.calls += 1
        self.seen = torch.full((2,), 1.0)
        torch.rand(3)
        hidden = self.norm(self.enter(x)).relu_() * scale
        if self.fails:
            raise RuntimeError("no")
        return {"hidden": hidden, "logits": self.fc(hidden)}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_pass_leaves_no_trace(fails: bool, context: Any) -> None:
    model = Traced()
    model.norm.eval()
    model.fails = fails
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    with context():
        example = torch.ones(4, 6)
        if fails:
            with pytest.raises(ValueError, match="raises RuntimeError: no; pass a tensor, a tuple"):
                eg.matrices(model, example=example)
        else:
            plan = eg.matrices(model, example=example)
            assert [entry.name for entry in plan if entry.reason == "output head"] == ["fc.weight"]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("example", [torch.ones(4, 6), (torch.ones(4, 6), 2.0), {"x": torch.ones(4, 6), "scale": 0.5}])
def test_an_example_is_a_tensor_arguments_or_keyword_arguments(example: Any) -> None:
    assert [entry.name for entry in eg.matrices(Traced(), example=example).taken] == ["enter.weight"]


def test_logits_are_preferred_to_other_outputs() -> None:
    """The hidden states that are returned beside them are made by no head."""
    plan = eg.matrices(Traced(), example=rows())
    assert [entry.name for entry in plan.left if "head" in entry.reason] == ["fc.weight"]


def test_frozen_weights_do_not_hide_the_head() -> None:
    model = Policy("steer", "brake").requires_grad_(False)
    model.trunk.requires_grad_(True)
    plan = eg.matrices(model, example=rows())
    assert [entry.name for entry in plan if entry.reason == "output head"] == ["steer.weight", "brake.weight"]


def test_without_a_graph_the_last_call_decides() -> None:
    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.end, self.begin = nn.Linear(8, 3), nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.end(self.begin(x)).argmax(-1)  # type: ignore[no-any-return]

    assert [entry.name for entry in eg.matrices(Greedy(), example=rows()).taken] == ["begin.weight"]


def test_a_compiled_or_wrapped_model_runs_as_the_bare_one() -> None:
    for model in (torch.compile(UNet(), backend="eager"), nn.DataParallel(UNet())):
        assert "outc.weight" in [entry.name for entry in eg.matrices(model, example=image()).left if entry.shape[1:]]


@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        (torch.ones(4, 7), ValueError, "example must be an input of the model, got one with which its forward pass raises"),
        ([torch.ones(4, 6)], TypeError, "example must be a tensor, a tuple of arguments or a dict of .*, got list"),
        ({"nope": 1}, ValueError, "unexpected keyword argument 'nope'"),
    ],
)
def test_a_wrong_example_is_refused(example: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        eg.matrices(network(), example=example)


@pytest.mark.parametrize("options", [{"head": None}, {"head": "last"}, {"head": "4"}, {"include": "0"}])
def test_an_example_without_effect_warns(options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="example= has no effect beside include= or head="):
        eg.matrices(network(), example=torch.ones(4, 6), **options)
