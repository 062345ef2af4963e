"""Saving, loading, resuming; and what is *not* kept."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import loss_of, network, same, train

import egalitarian as eg
from egalitarian.apply.batch import SHARED_ENTRIES

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
def test_a_resumed_run_is_bitwise_the_unbroken_one(chain: Any, switched_off: bool) -> None:
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
    twin, twins_optimizer, twins_egd = begin(chain, until)
    for part, state in zip((twin, twins_optimizer, twins_egd), saved, strict=True):
        part.load_state_dict(state)
    assert twins_egd.active is not switched_off
    for epoch, metric in list(enumerate(metrics))[3:]:
        train(twin, twins_optimizer, 2, start=2 * epoch)
        twins_egd.observe(metric)
    assert same(model, twin)
    assert twins_egd.active == egd.active


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_egd_resumes_bitwise(chain: Any) -> None:
    model = network()
    optimizer = eg.EGD(eg.matrices(model), lr=0.01, momentum=0.9, transform=chain)
    train(model, optimizer, 3)
    saved = through_a_file([model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 3, start=3)
    twin = network()
    twins_optimizer = eg.EGD(eg.matrices(twin), lr=0.5, momentum=0.1, transform=chain)
    twin.load_state_dict(saved[0])
    twins_optimizer.load_state_dict(saved[1])
    train(twin, twins_optimizer, 3, start=3)
    assert same(model, twin)


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_distributed_checkpoint_round_trip(chain: Any, tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    model, optimizer, egd = begin(chain, eg.Until(0.9))
    train(model, optimizer, 3)
    egd.observe(0.95)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on running without a process group
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


def test_nothing_is_put_into_the_optimizer() -> None:
    model, optimizer, _ = begin([eg.GrokfastEMA(), eg.Polar()])
    bare_model = network()
    bare = torch.optim.AdamW(bare_model.parameters(), lr=0.01)
    train(model, optimizer, 2)
    train(bare_model, bare, 2)
    ours, theirs = optimizer.state_dict(), bare.state_dict()
    assert [set(state) for state in ours["state"].values()] == [set(state) for state in theirs["state"].values()]
    assert [set(group) for group in ours["param_groups"]] == [set(group) for group in theirs["param_groups"]]


def test_a_saved_state_does_not_follow_the_run() -> None:
    model, optimizer, egd = begin([eg.GrokfastEMA(), eg.Polar()])
    train(model, optimizer, 1)
    saved = egd.state_dict()
    kept = copy.deepcopy(saved)
    train(model, optimizer, 2)
    assert saved["step"] == kept["step"] == 1
    for name, memory in kept["tensors"].items():
        assert all(torch.equal(value, saved["tensors"][name][key]) for key, value in memory.items())


def test_loading_what_does_not_fit_changes_nothing() -> None:
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
    optimizer = eg.EGD(model.parameters(), lr=0.1, momentum=0.9, decay_before=0.01)
    optimizer.load_state_dict(bare.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["decay_before"] == 0.01
    train(model, optimizer, 1)


# -- memory -----------------------------------------------------------------------------------------------------------


def live_tensors() -> list[Tensor]:
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]


def test_exact_egd_keeps_no_tensor_between_steps() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, decay_before=0.01)
    train(model, optimizer, 2)
    old = live_tensors()  # held, so that no new tensor takes an old one's place
    train(model, optimizer, 3, start=2)
    expected = {id(each) for each in old} | {id(parameter.grad) for parameter in model.parameters()}
    assert [tuple(each.shape) for each in live_tensors() if id(each) not in expected] == []
    assert egd.state_dict()["tensors"] == {}


def peak_bytes(work: Callable[[], object]) -> int:
    """What the CPU allocator had handed out at the most, beyond what was there before."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes, initial=0))


def peak_of(layers: int) -> int:
    model = nn.Sequential(*(nn.Linear(128, 64, bias=False) for _ in range(layers)))
    plan = eg.matrices(model, head=None)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return peak_bytes(lambda: eg.equalize_(plan))


def test_the_peak_is_that_of_one_matrix_however_many_layers(record_property: Any) -> None:
    """Matrices are taken one at a time: the extra memory at the peak is a few copies of the largest one, in float64."""
    one, many = peak_of(1), peak_of(12)
    float64_copy = 64 * 128 * 8
    record_property("peak_in_float64_copies", one / float64_copy)
    assert many <= 1.1 * one
    assert 2 * float64_copy < one < 12 * float64_copy


def test_where_matrices_share_a_call_the_peak_is_that_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers: here as if a CPU gained by it, and with room for three of them."""
    one = peak_of(1)
    monkeypatch.setitem(SHARED_ENTRIES, "cpu", 3 * 64 * 128)
    three, many = peak_of(3), peak_of(12)
    assert many <= 1.1 * three
    assert 2 * one < three < 5 * one


def test_spectra_are_a_log_and_not_state() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, spectrum_every=3)
    gradients = {}
    for step in range(7):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        gradients[step] = model[0].weight.grad.clone()
        optimizer.step()
    kept = egd.spectrum()
    assert set(kept) == {"0.weight", "2.weight"}
    assert list(kept["0.weight"]) == [0, 3, 6]
    for step, spectrum in kept["0.weight"].items():
        torch.testing.assert_close(spectrum.values, torch.linalg.svdvals(gradients[step].double()))
    assert "spectrum" not in "".join(egd.state_dict())
