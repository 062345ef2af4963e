"""What the forward pass counts as a head: what reaches the outputs and nothing else takes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from architectures import rows
from torch import Tensor, nn
from torch.nn.functional import relu
from torch.nn.utils import parametrizations

import egalitarian as eg
from egalitarian.select import survey


def heads(model: nn.Module, example: Any) -> list[str]:
    return [entry.name for entry in survey(model, example=example) if entry.reason == "output head"]


class Several(nn.Module):
    """A stem, residual blocks and a head; given what it returns."""

    def __init__(self, outputs: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.outputs = outputs
        self.stem, self.blocks = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.out, self.box = nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = x + relu(block(x))
        return self.outputs(self.out(x), self.box(x), x)


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        (lambda out, box, x: (out, box, x), ["out.weight", "box.weight"]),
        (lambda out, box, x: {"logits": out, "pred_boxes": box}, ["out.weight", "box.weight"]),
        (lambda out, box, x: {"logits": out, "pred_boxes": box, "last_hidden_state": x}, ["out.weight", "box.weight"]),
        (lambda out, box, x: {"logits": out, "hidden_states": (x, box)}, ["out.weight", "box.weight"]),
        (lambda out, box, x: out, ["out.weight", "box.weight"]),
    ],
    ids=["features", "boxes", "hidden states", "hidden among others", "unused"],
)
def test_features_that_are_returned_make_no_head(outputs: Any, found: list[str]) -> None:
    """The last two: outputs that the pass does not use are judged by evidence, and these widths say that it is a head."""
    assert heads(Several(outputs), rows()) == found


class Fed(nn.Module):
    """A recurrent forecaster: what it predicts is what it reads next."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.predict = nn.GRUCell(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for _ in range(3):
            state = self.cell(x, state)
            x = self.predict(state)
        return x


def test_a_named_head_that_is_fed_back_stays_a_head() -> None:
    assert heads(Fed(), rows()) == ["predict.weight"]


class Bare(nn.Module):
    """Two layers that are not recognised; it returns what both make."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 8)
        self.first, self.second = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = relu(self.enter(x)) @ self.first
        return relu(hidden) @ self.second, hidden


def test_a_matrix_whose_product_enters_another_is_no_head() -> None:
    assert heads(Bare(), rows()) == ["second"]


@pytest.mark.parametrize("example", [None, rows()])
def test_a_plan_does_not_run_the_power_iteration_of_a_spectral_norm(example: Tensor | None) -> None:
    model = nn.Sequential(nn.Linear(6, 8), parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert before
    eg.matrices(model, example=example)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
