"""EGD with Accelerate: before or after `prepare`, as in a plain loop, bit for bit; saved and loaded with the rest."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, GradientState
from documents import ROOT, blocks, execute, namespace
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import egalitarian as eg
from egalitarian.integrations.accelerate import attach_prepared

CHAIN = [eg.LowRankPolar(4), eg.GrokfastEMA(alpha=0.9, lamb=1.0)]  # randomized, and with a memory


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def loader() -> DataLoader[Any]:
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def train(
    accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any, clip: float = 0
) -> None:
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()


def plain_loop(accumulate: int, clip: float, half: bool, egd: bool = True) -> nn.Module:
    """What the accelerated loop does, by hand."""
    model = network()
    optimizer = adam(model)
    if egd:
        eg.attach(optimizer, model)
    for number, (x, y) in enumerate(loader()):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            output = model(x)
        (nn.functional.cross_entropy(output.float(), y) / accumulate).backward()
        if number % accumulate == accumulate - 1:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.0), (2, 0.0), (2, 0.01)])
def test_the_accelerated_loop_is_the_plain_loop(before: bool, half: bool, accumulate: int, clip: float) -> None:
    precision: Any = "bf16" if half else "no"
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision)
    bare = network()
    optimizer: Any = adam(bare)
    if before:
        eg.attach(optimizer, bare)
    model, optimizer, batches = accelerator.prepare(bare, optimizer, loader())
    if not before:
        attach_prepared(accelerator, optimizer, model)
    train(accelerator, model, optimizer, batches, clip)
    assert same(bare, plain_loop(accumulate, clip, half))
    assert not same(bare, plain_loop(accumulate, clip, half, egd=False))


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_is_as_in_the_plain_loop_and_a_skipped_step_is_none(fused: bool) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # made for float16 on a GPU alone
    bare = network()
    model, optimizer, batches = accelerator.prepare(
        bare, torch.optim.Adam(bare.parameters(), lr=1e-2, fused=fused), loader()
    )
    egd = attach_prepared(accelerator, optimizer, model)
    x, y = next(iter(batches))
    accelerator.backward(nn.functional.cross_entropy(model(x), y) * float("inf"))
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.step_was_skipped is not fused  # a fused one is called, and skips by itself
    assert egd.state_dict()["step"] == 0
    train(accelerator, model, optimizer, batches)
    assert egd.state_dict()["step"] == 8

    by_hand, scaler = network(), torch.amp.GradScaler("cpu", init_scale=512.0)  # halved by the skipped step
    inner = torch.optim.Adam(by_hand.parameters(), lr=1e-2, fused=fused)
    eg.attach(inner, by_hand)
    for x, y in loader():
        scaler.scale(nn.functional.cross_entropy(by_hand(x), y)).backward()
        scaler.step(inner)
        scaler.update()
        inner.zero_grad()
    assert same(bare, by_hand)


def prepared(**settings: Any) -> tuple[Accelerator, nn.Module, Any, Any, eg.Attachment]:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer, batches = accelerator.prepare(model, adam(model), loader())
    return accelerator, model, optimizer, batches, attach_prepared(accelerator, optimizer, model, **settings)


def test_a_loaded_state_continues_the_unbroken_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"transform": CHAIN, "until": eg.Until(0.9, patience=1)}
    accelerator, whole, optimizer, batches, unbroken = prepared(**settings)
    train(accelerator, whole, optimizer, batches)
    unbroken.observe(0.95)
    accelerator.save_state(str(tmp_path / "saved"))
    unbroken.observe(0.95)
    train(accelerator, whole, optimizer, batches)

    accelerator, model, optimizer, batches, egd = prepared(**settings)
    accelerator.load_state(str(tmp_path / "saved"))
    egd.observe(0.95)
    train(accelerator, model, optimizer, batches)
    assert same(whole, model)
    assert egd.active is unbroken.active is False
    assert egd.state_dict()["step"] == unbroken.state_dict()["step"] == 16


def test_an_attachment_from_before_is_saved_and_loaded_too(tmp_path: Path) -> None:
    def build(steps: int) -> tuple[Accelerator, eg.Attachment]:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator, model = Accelerator(cpu=True), network()
        optimizer = adam(model)
        egd = eg.attach(optimizer, model, CHAIN)
        model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
        train(accelerator, model, optimizer, list(batches)[:steps])
        return accelerator, egd

    accelerator, saved = build(2)
    saved.off()
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator, egd = build(0)
    accelerator.load_state(str(tmp_path / "saved"))
    assert egd.active is False
    assert egd.state_dict()["step"] == 2
    loaded = egd.state_dict()["tensors"]
    for name, memory in saved.state_dict()["tensors"].items():
        assert all(torch.equal(value, loaded[name][key]) for key, value in memory.items())


@pytest.mark.parametrize("swapped", [False, True])
def test_two_optimizers_that_are_prepared_in_another_order_are_refused(swapped: bool, tmp_path: Path) -> None:
    """Accelerate saves them by their number."""

    def build(names: list[str]) -> tuple[Accelerator, list[eg.Attachment]]:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator, model = Accelerator(cpu=True), nn.ModuleDict({"one": network(), "other": network()})
        optimizers = [torch.optim.SGD(model[name].parameters(), lr=0.1) for name in names]
        prepared: list[Any] = list(accelerator.prepare(*optimizers))
        return accelerator, [attach_prepared(accelerator, optimizer, model) for optimizer in prepared]

    accelerator, egds = build(["one", "other"])
    egds[0].off()
    accelerator.save_state(str(tmp_path / "saved"))
    accelerator, egds = build(["other", "one"] if swapped else ["one", "other"])
    if swapped:
        with pytest.raises(ValueError, match=r"'one\.0\.weight' \(16 x 8 then, not equalised now\)"):
            accelerator.load_state(str(tmp_path / "saved"))
        assert egds[0].active
    else:
        accelerator.load_state(str(tmp_path / "saved"))
        assert [egd.active for egd in egds] == [False, True]


def test_a_state_that_is_loaded_before_warns(tmp_path: Path) -> None:
    accelerator, model, optimizer, batches, _ = prepared()
    train(accelerator, model, optimizer, batches)
    accelerator.save_state(str(tmp_path / "saved"))
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, model = Accelerator(cpu=True), network()
    model, optimizer, batches = accelerator.prepare(model, adam(model), loader())
    accelerator.load_state(str(tmp_path / "saved"))
    attach_prepared(accelerator, optimizer, model)
    with pytest.warns(UserWarning, match="its own state was not loaded; attach before") as caught:
        train(accelerator, model, optimizer, batches)
    assert caught[0].filename == __file__


# parameters that prepare replaces


def replaced(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> nn.Sequential:
    """As `prepare` does on some devices: new modules with new parameters, in the optimizer, too."""
    new = copy.deepcopy(model)
    pairs: dict[Tensor, Tensor] = dict(zip(model.parameters(), new.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["params"] = [pairs[parameter] for parameter in group["params"]]
    return new


def test_a_plan_from_before_finds_its_parameters_by_name() -> None:
    accelerator, model = Accelerator(cpu=True), network()
    plan = eg.matrices(model, include="2.weight")
    optimizer: Any = torch.optim.Adam(plan.groups(taken={"lr": 0.02}), lr=1e-2)
    model, optimizer, batches = accelerator.prepare(replaced(model, optimizer), optimizer, loader())
    egd = attach_prepared(accelerator, optimizer, model, plan, spectrum_every=1)
    train(accelerator, model, optimizer, batches)
    assert [entry.parameter for entry in egd.plan.taken] == [model[2].weight]
    assert egd.plan.modules == (model[2],)
    assert list(egd.spectrum()) == ["2.weight"]


def test_an_attachment_from_before_says_that_its_parameters_are_gone() -> None:
    accelerator, model = Accelerator(cpu=True), network()
    optimizer: Any = adam(model)
    eg.attach(optimizer, model)
    model, optimizer, batches = accelerator.prepare(replaced(model, optimizer), optimizer, loader())
    with pytest.raises(RuntimeError, match="the optimizer must hold the plan's matrices, got none of them any more"):
        train(accelerator, model, optimizer, batches)


def test_a_plan_of_another_model_is_refused() -> None:
    accelerator, model = Accelerator(cpu=True), network()
    other = nn.ModuleDict({"hidden": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    model, optimizer = accelerator.prepare(model, adam(model))
    with pytest.raises(ValueError, match=r"plan must name parameters of the model, got 'hidden\.weight'"):
        attach_prepared(accelerator, optimizer, model, eg.matrices(other))
    wider = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    with pytest.raises(ValueError, match=r"got '2\.weight' of shape \(32, 16\), not \(16, 16\); make it of the same"):
        attach_prepared(accelerator, optimizer, model, eg.matrices(wider))


# mistakes


def test_prepare_must_come_first() -> None:
    accelerator, model = Accelerator(cpu=True), network()
    with pytest.raises(ValueError, match=r"optimizer must be prepared, got Adam; first call .* accelerator\.prepare"):
        attach_prepared(accelerator, adam(model), model)
    with pytest.raises(TypeError, match="accelerator must be an Accelerator, got Adam"):
        attach_prepared(adam(model), adam(model), model)  # type: ignore[arg-type]


def test_arguments_are_named() -> None:
    accelerator, model = Accelerator(cpu=True), network()
    model, optimizer = accelerator.prepare(model, adam(model))
    attach: Any = attach_prepared
    with pytest.raises(TypeError, match=r"optimizer must be an Optimizer, got Sequential; call attach_prepared\(accel"):
        attach(accelerator, model, optimizer)
    with pytest.raises(TypeError, match="model must be a Module, got Plan; call"):
        attach(accelerator, optimizer, eg.matrices(model))
    with pytest.raises(TypeError, match=r"plan must be a Plan, got Polar; call .* with all else by name"):
        attach(accelerator, optimizer, model, eg.Polar())
    with pytest.raises(TypeError, match=r"attach_prepared must be .* got 'precision'; pass transform=Polar\(prec"):
        attach(accelerator, optimizer, model, precision="exact")
    with pytest.raises(TypeError, match=r"got 'monitor'; pass its metrics to observe\(\)"):
        attach(accelerator, optimizer, model, until=eg.Until(0.9), monitor="accuracy")
    with pytest.raises(TypeError, match="got 'save_with_optimizer'; leave it out, since EGD's state is in the trainer's"):
        attach(accelerator, optimizer, model, save_with_optimizer=False)


def test_a_second_attachment_is_refused() -> None:
    accelerator, model, optimizer, _, _ = prepared()
    with pytest.raises(ValueError, match="at most one attachment"):
        attach_prepared(accelerator, optimizer, model)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_shards_are_refused(kind: str) -> None:
    accelerator, model = Accelerator(cpu=True), network()
    model, optimizer = accelerator.prepare(model, adam(model))
    accelerator.state.distributed_type = DistributedType[kind]
    with pytest.raises(ValueError, match=f"got {kind}, which shards them; use DDP, or one device"):
        attach_prepared(accelerator, optimizer, model)


def test_without_accelerate_the_error_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, "egalitarian.integrations.accelerate")
    with pytest.raises(ImportError, match=r"pip install 'egalitarian\[accelerate\]'"):
        importlib.import_module("egalitarian.integrations.accelerate")


# the page, and the example

PAGE, LOOP = ROOT / "docs" / "trainers.md", "a loop"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {block.marked: block for block in blocks(PAGE.read_text(encoding="utf-8"))}
    names = namespace()
    names["optimizer"] = adam(names["model"])
    names["loader"] = DataLoader(TensorDataset(names["x"], names["y"]), batch_size=4)
    execute(found[f"tests/hosts/{Path(__file__).name}: {LOOP}"], PAGE, names)
    assert names["egd"].active is False
    assert names["egd"].state_dict()["step"] == 2


def test_the_example_resumes(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "hosts" / "accelerate_loop.py"), "--quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "bitwise the unbroken one: True" in done.stdout
