"""What the README says of addition mod 97, on the CPU, one seed: EGD groks at once, and a large decay needs EGD on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import egalitarian as eg

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import grokking

DECAY_AFTER = "EGD, decay after, lr 3"


def test_decay_after_groks_and_stays() -> None:
    history = grokking.train(DECAY_AFTER, seed=0, epochs=40, device="cpu")
    crossing = grokking.crossing(history)
    assert crossing is not None
    assert crossing < 25
    assert history[-1][1] > 0.95


def test_a_switch_off_under_that_decay_falls_back_to_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    def switched_off(model: torch.nn.Sequential) -> grokking.Method:
        plan = eg.matrices(model)
        optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.03}, left={"weight_decay": 1e-4}), lr=3.0)
        with pytest.warns(UserWarning, match="outlives the switch-off"):
            return optimizer, eg.attach(optimizer, plan, until=eg.Until(0.95)).observe

    monkeypatch.setitem(grokking.METHODS, "switched off", switched_off)
    monkeypatch.setattr(grokking, "PAST", 10_000)
    history = grokking.train("switched off", seed=0, epochs=40, device="cpu")
    crossing = grokking.crossing(history)
    assert crossing is not None
    assert crossing < 25
    assert history[-1][1] < 0.05
