"""Checkpoints of attachments and of EGD: a resumed run continues bit for bit, and states that do not fit are refused."""

from __future__ import annotations

import copy
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy import network, same, train

import egalitarian as eg

CHAINS: dict[str, Any] = {
    "polar": eg.Polar(),
    "lowrank": eg.LowRankPolar(2),
    "grokfast ema": [eg.GrokfastEMA(0.9), eg.Polar()],
    "grokfast ma": [eg.Polar(), eg.GrokfastMA(4, warmup=False)],
    "momentum": [eg.Momentum(), eg.LowRankPolar(3)],
}


def begin(chain: Any, until: eg.Until | None = None) -> tuple[nn.Module, torch.optim.Optimizer, eg.Attachment]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, eg.attach(optimizer, model, chain, until=until, decay_before=0.01)


def through_a_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("switched_off", [False, True])
def test_a_resumed_run_equals_the_uninterrupted_one_bitwise(chain: Any, switched_off: bool) -> None:
    until = eg.Until(0.9, patience=1, resume=True, margin=0.1)
    metrics = [0.95, 0.95, 0.95, 0.7, 0.7] if switched_off else [0.1, 0.95, 0.1, 0.95, 0.1]
    model, optimizer, egd = begin(chain, until)
    saved: Any = None
    for epoch, metric in enumerate(metrics):
        train(model, optimizer, 2, start=2 * epoch)
        egd.observe(metric)
        if epoch == 2:
            saved = through_a_file([model.state_dict(), optimizer.state_dict(), egd.state_dict()])
            assert egd.active is not switched_off
    twin, twin_optimizer, twin_egd = begin(chain, until)
    for part, state in zip((twin, twin_optimizer, twin_egd), saved, strict=True):
        part.load_state_dict(state)
    assert twin_egd.active is not switched_off
    for epoch, metric in list(enumerate(metrics))[3:]:
        train(twin, twin_optimizer, 2, start=2 * epoch)
        twin_egd.observe(metric)
    assert same(model, twin)
    assert twin_egd.active == egd.active


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_egd_resumes_bitwise(chain: Any) -> None:
    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.01, momentum=0.9, transform=chain)
    train(model, optimizer, 3)
    saved = through_a_file([model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 3, start=3)
    twin = network()
    twin_optimizer = eg.EGD(eg.matrices(twin), lr=0.5, momentum=0.1, transform=chain)
    twin.load_state_dict(saved[0])
    twin_optimizer.load_state_dict(saved[1])
    train(twin, twin_optimizer, 3, start=3)
    assert same(model, twin)


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_distributed_checkpoint_restores_the_state(chain: Any, tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    model, optimizer, egd = begin(chain, eg.Until(0.9))
    train(model, optimizer, 3)
    egd.observe(0.95)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch, without a process group
        checkpoint.save({"egd": egd.state_dict()}, checkpoint_id=tmp_path / "saved")
        _, _, other = begin(chain, eg.Until(0.9))
        state = {"egd": other.state_dict()}
        checkpoint.load(state, checkpoint_id=tmp_path / "saved")
    other.load_state_dict(state["egd"])
    before, after = egd.state_dict(), other.state_dict()
    assert {key: before[key] for key in before if key != "tensors"} == {
        key: after[key] for key in after if key != "tensors"
    }
    for name, memory in before["tensors"].items():
        assert all(torch.equal(value, after["tensors"][name][key]) for key, value in memory.items())


def test_a_randomized_transform_saves_one_integer() -> None:
    """The step. Sketches depend on it, the seed and the names."""
    model, optimizer, egd = begin(eg.LowRankPolar(2, seed=3))
    train(model, optimizer, 2)
    saved = egd.state_dict()
    assert saved["step"] == 2
    assert saved["tensors"] == {}


def test_an_attachment_stores_nothing_in_the_optimizer() -> None:
    model, optimizer, _ = begin([eg.GrokfastEMA(), eg.Polar()])
    bare_model = network()
    bare = torch.optim.AdamW(bare_model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    train(bare_model, bare, 2)
    ours, theirs = optimizer.state_dict(), bare.state_dict()
    assert [set(state) for state in ours["state"].values()] == [set(state) for state in theirs["state"].values()]
    assert [set(group) for group in ours["param_groups"]] == [set(group) for group in theirs["param_groups"]]


def test_a_saved_state_does_not_change_with_later_steps() -> None:
    model, optimizer, egd = begin([eg.GrokfastEMA(), eg.Polar()])
    train(model, optimizer, 1)
    saved = egd.state_dict()
    kept = copy.deepcopy(saved)
    train(model, optimizer, 2)
    assert saved["step"] == kept["step"] == 1
    for name, memory in kept["tensors"].items():
        assert all(torch.equal(value, saved["tensors"][name][key]) for key, value in memory.items())


def test_loading_a_state_that_does_not_fit_changes_nothing() -> None:
    model, optimizer, egd = begin([eg.GrokfastEMA(), eg.Polar()])
    train(model, optimizer, 2)
    good = egd.state_dict()
    wrong = [
        (begin(eg.Polar())[2].state_dict(), "same transform"),
        ({**good, "tensors": {}}, "same tensors"),
        ({**good, "active": [True, False], "streak": [0, 0]}, "stack of shape"),
        ({"step": 3}, "come from an attachment"),
    ]
    for state, message in wrong:
        with pytest.raises(ValueError, match=message):
            egd.load_state_dict(state)
        assert egd.state_dict()["step"] == 2
        assert egd.active is True


def test_plain_sgd_checkpoints_load_into_egd() -> None:
    model, bare_model = network(), network()
    bare = torch.optim.SGD(bare_model.parameters(), lr=0.25, momentum=0.9)
    train(bare_model, bare, 2)
    optimizer = eg.EGD(eg.matrices(model), lr=0.1, momentum=0.9, decay_before=0.01)
    optimizer.load_state_dict(bare.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["decay_before"] == 0.01
    train(model, optimizer, 1)
