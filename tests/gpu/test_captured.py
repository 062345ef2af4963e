"""A captured step equals an eager one bit for bit, in every way that a step is made."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.apply import captured
from egalitarian.transforms import ElementwiseTransform, MatrixTransform

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 7


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def network(seed: int = 0) -> nn.Module:
    """Linear layers of two shapes, a convolution in another memory format, a head."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(192, 40),
        nn.ReLU(),
        nn.Linear(40, 40),
        nn.ReLU(),
        nn.Linear(40, 40),
        nn.ReLU(),
        nn.Linear(40, 5),
    )
    return layers.cuda()


def batches(count: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(16, 3, 8, 8, generator=generator)
        yield x.cuda(), torch.randint(5, (16,), generator=generator).cuda()


def backward(model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
    (nn.functional.cross_entropy(model(x), y) * scale).backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, before: Callable[[int], None] = lambda step: None) -> None:
    for step, (x, y) in enumerate(batches()):
        backward(model, x, y)
        before(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def recordings(egd: eg.Attachment) -> int:
    parts = [part for _, each in egd._engine.captures._parts.values() for part in each]
    return sum(isinstance(part, captured.Recording) for part in parts)


def compared(train_once: Callable[[nn.Module, bool], Any]) -> None:
    """Trains with and without capture, and compares all weights."""
    results = []
    for capture in (False, True):
        model = network()
        train_once(model, capture)
        results.append(weights(model))
    same(*results)


CHAINS: dict[str, Any] = {
    "exact": eg.Polar(),
    "fast": eg.Polar(precision="fast"),
    "coarse": eg.Polar(precision="coarse"),
    "auto": eg.Polar(precision="auto"),
    "rms": eg.Polar(scale="rms"),
    "row norm": eg.RowNorm(),
    "identity": eg.Identity(),
    "momentum": [eg.Momentum(), eg.Polar()],
    "nesterov after": [eg.Polar(), eg.Momentum(0.9, nesterov=True)],
    "grokfast ema": [eg.GrokfastEMA(), eg.Polar()],
    "grokfast ma": [eg.GrokfastMA(window=3), eg.Polar(precision="coarse")],
    "low rank": eg.LowRankPolar(4, cap=True),
    "low rank, fixed": eg.LowRankPolar(4, cap=True, fixed=True),
}


@pytest.mark.parametrize("name", CHAINS)
def test_captured_steps_are_eager_steps(name: str) -> None:
    counts = []

    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        egd = eg.attach(optimizer, model, CHAINS[name], capture=capture, decay_before=1e-3)
        train(model, optimizer)
        counts.append(recordings(egd))
        if capture:
            assert "CUDA graph" in str(egd.plan), egd.plan

    compared(once)
    assert counts == [0, 1]


def test_eigenvectors_run_without_a_graph_and_the_plan_says_so() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        egd = eg.attach(optimizer, model, eg.Polar(method="eigh"))
        train(model, optimizer)
    assert recordings(egd) == 0
    assert "without a graph: eigh synchronises" in str(egd.plan)


@pytest.mark.parametrize("host", ["sgd", "adamw", "fused"])
def test_grad_scaler(host: str) -> None:
    def once(model: nn.Module, capture: bool) -> None:
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "sgd": torch.optim.SGD,
            "adamw": torch.optim.AdamW,
            "fused": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=True),
        }
        optimizer = kinds[host](model.parameters(), lr=0.01)
        eg.attach(optimizer, model, [eg.Momentum(0.5), eg.Polar()], capture=capture, decay_before=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        for step, (x, y) in enumerate(batches()):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss * (float("inf") if step == 4 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    compared(once)


def test_accumulation_clipping_and_schedules() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        eg.attach(optimizer, model, capture=capture)
        for step, (x, y) in enumerate(batches(3 * STEPS)):
            backward(model, x, y)
            if step % 3 == 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    compared(once)


def test_switched_off_and_on() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        egd = eg.attach(optimizer, model, capture=capture, decay_before=1e-2)
        train(model, optimizer, lambda step: egd.off() if step in (4,) else egd.on() if step == 6 else None)

    compared(once)


def test_a_stack_is_switched_by_element() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(3, 8, 12, device="cuda"))
        model.register_parameter("stacked", weight)
        plan = eg.matrices({"w": weight}, include="w", stack=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        egd = eg.attach(optimizer, plan, [eg.Momentum(0.5), eg.Polar()], capture=capture)
        generator = torch.Generator("cuda").manual_seed(3)
        for step in range(10):
            weight.grad = torch.randn(weight.shape, device="cuda", generator=generator)
            if step == 5:
                egd.off([True, False, True])
            if step == 8:
                egd.on([True, False, False])
            optimizer.step()
        assert recordings(egd) == capture

    compared(once)


def test_gradients_that_are_absent_in_turn() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        egd = eg.attach(optimizer, model, [eg.Momentum(0.5), eg.Polar()], capture=capture)
        layers = [model[4], model[6], model[8]]
        for step, (x, y) in enumerate(itertools.chain.from_iterable(itertools.repeat(list(batches()), 3))):
            backward(model, x, y)
            layers[step % 3].weight.grad = None
            optimizer.step()
            optimizer.zero_grad()
        assert recordings(egd) == 3 * capture

    compared(once)


@pytest.mark.filterwarnings("ignore:no gradient in 10 steps")
def test_more_sets_of_gradients_than_are_recorded() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    egd = eg.attach(optimizer, model, eg.Polar())
    weights_ = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    for present in range(1, 32):
        for _ in range(3):
            for index, weight in enumerate(weights_):
                weight.grad = torch.randn_like(weight) if present >> index & 1 else None
            optimizer.step()
    assert len(egd._engine.captures._parts) <= captured.MOST


def test_groups_shapes_dtypes_and_devices_change() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        hidden = list(model[6].parameters())
        rest = [p for p in model.parameters() if all(p is not q for q in hidden)]
        optimizer = torch.optim.SGD(rest, lr=0.05)
        egd = eg.attach(optimizer, model, eg.Polar(), capture=capture)
        train(model, optimizer)
        optimizer.add_param_group({"params": hidden, "lr": 0.1})
        train(model, optimizer)
        model[4].weight.requires_grad_(False)
        model[4].weight.grad = None
        train(model, optimizer)
        for parameter in model.parameters():  # another memory format
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        train(model, optimizer)
        model.bfloat16()
        for x, y in batches():
            backward(model, x.bfloat16(), y)
            optimizer.step()
            optimizer.zero_grad()
        assert recordings(egd) == 5 * capture or not capture or recordings(egd) >= 1

    compared(once)


def test_several_attachments_and_streams() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        first = torch.optim.SGD(model[:6].parameters(), lr=0.05)
        second = torch.optim.SGD(model[6:].parameters(), lr=0.05)
        eg.attach(first, eg.matrices(model[:6], head=None), capture=capture)
        eg.attach(second, eg.matrices(model[6:]), capture=capture)
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for x, y in batches():
            backward(model, x, y)
            for optimizer, stream in zip((first, second), streams, strict=True):
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    optimizer.step()
            for stream in streams:
                torch.cuda.current_stream().wait_stream(stream)
            model.zero_grad()

    compared(once)


def test_inside_a_graph_of_the_user_there_is_no_inner_one() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        egd = eg.attach(optimizer, model, [eg.Momentum(0.5), eg.Polar()], capture=capture)
        x, y = (each.clone() for each in next(batches()))

        def step() -> None:
            backward(model, x, y)
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                optimizer.zero_grad()
                step()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for new_x, new_y in batches():
            x.copy_(new_x)
            y.copy_(new_y)
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
            graph.replay()
        assert recordings(egd) == 0

    compared(once)


def test_saved_and_resumed() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        chain = [eg.Momentum(0.9), eg.Polar(), eg.GrokfastEMA()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        egd = eg.attach(optimizer, model, chain, capture=capture)
        train(model, optimizer)
        saved = egd.state_dict()
        copies = {name: {key: value.clone() for key, value in kept.items()} for name, kept in saved["tensors"].items()}
        train(model, optimizer)
        for name, kept in copies.items():  # later steps do not change what was saved
            for key, value in kept.items():
                torch.testing.assert_close(saved["tensors"][name][key], value, rtol=0, atol=0)
        egd.load_state_dict(saved)
        train(model, optimizer)

    compared(once)


@pytest.mark.parametrize("transform", [eg.Polar(), [eg.Momentum(0.5), eg.Polar(precision="coarse")]])
def test_the_optimizer_egd(transform: Any) -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = eg.EGD(eg.matrices(model), lr=0.05, transform=transform, momentum=0.5, capture=capture)
        train(model, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, optimizer)

    compared(once)


def test_non_finite_gradients_stay() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        eg.attach(optimizer, model, eg.Polar(precision="coarse"), capture=capture)

        def spoil(step: int) -> None:
            if step == 5:
                grad = model[6].weight.grad
                grad[1, 2] = float("nan")
                kept = grad.clone()
                eg.equalize_(eg.matrices(model), eg.Polar(precision="coarse"))
                torch.testing.assert_close(grad, kept, equal_nan=True, rtol=0, atol=0)
                grad[1, 2] = 0.0

        train(model, optimizer, spoil)

    compared(once)


class Reads(MatrixTransform, shares=True, captures=True):
    """Declares that it can be captured, and synchronises."""

    def __call__(self, G: Tensor, site: Any) -> Tensor:
        return G / G.abs().max().item()


class Undeclared(ElementwiseTransform):
    remembers = ()

    def start(self, grad: Tensor, stack: int | None) -> dict[str, Tensor]:
        return {}

    def __call__(self, grad: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return grad * 2, memory


def test_a_failed_capture_warns_once_and_goes_on() -> None:
    results = []
    for capture in (False, True):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        egd = eg.attach(optimizer, model, Reads(), capture=capture)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(model, optimizer)
        assert len([each for each in caught if "could not be captured" in str(each.message)]) == capture
        assert ("without a graph: the capture failed" in str(egd.plan)) is capture
        results.append(weights(model))
        torch.randn(3, device="cuda")  # the generator works after a failed capture
    same(*results)


def test_a_transform_that_is_not_declared_runs_without_a_graph() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    egd = eg.attach(optimizer, model, [Undeclared(), eg.Polar()])
    train(model, optimizer)
    assert recordings(egd) == 0
    assert "Undeclared is not declared with captures=True" in str(egd.plan)


def test_out_of_memory_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    monkeypatch.setattr(captured.Captures, "_stand_ins", fail)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    eg.attach(optimizer, model)
    with pytest.warns(UserWarning, match="out of memory"):
        train(model, optimizer)


def test_memory_is_bounded_and_freed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(12))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    egd = eg.attach(optimizer, model, eg.Polar(precision="coarse"))
    for _ in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    taken = sum(entry.parameter.numel() for entry in egd.plan.taken)
    assert recordings(egd) == 1
    bound = 4 * taken * 4 + 64 * 2**20
    assert 0 < egd._engine.captures.bytes < bound
    torch.cuda.synchronize()
    egd.remove()
    gc.collect()
    assert egd._engine.captures.bytes == 0


def test_a_compiled_step() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        eg.attach(optimizer, model, capture=capture)
        compiled = torch.compile(optimizer.step, backend="eager")
        for x, y in batches():
            backward(model, x, y)
            compiled()
            optimizer.zero_grad()

    compared(once)


# -- holes that reading found ------------------------------------------------------------------------------------------


def test_freed_workspaces_are_written_by_nobody() -> None:
    """Torch's compiler frees the workspaces of the matrix library whenever it records a graph of its own."""

    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        egd = eg.attach(optimizer, model, eg.Polar(), capture=capture)
        train(model, optimizer)
        assert recordings(egd) == capture
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        others = [torch.full((2**22,), 7.0, device="cuda") for _ in range(16)]  # take what the workspace had
        train(model, optimizer)
        torch.cuda.synchronize()
        assert all(bool((other == 7).all()) for other in others)

    compared(once)


def test_a_model_that_is_compiled_into_graphs() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        eg.attach(optimizer, model, capture=capture)
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(2):
            for x, y in batches():
                torch.compiler.cudagraph_mark_step_begin()
                backward(compiled, x, y)
                optimizer.step()
                optimizer.zero_grad()

    compared(once)


def test_after_a_failed_capture_torch_is_as_before() -> None:
    """The allocator gives memory back, and others capture."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    egd = eg.attach(optimizer, model, Reads())
    with pytest.warns(UserWarning, match="could not be captured"):
        train(model, optimizer)
    assert egd._engine.captures.bytes == 0
    assert not egd._engine.captures._memory
    torch.cuda.empty_cache()
    other = network()
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    other_egd = eg.attach(other_optimizer, other)
    train(other, other_optimizer)
    assert recordings(other_egd) == 1
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    assert y.tolist() == [2.0] * 4


def test_groups_that_change_before_a_graph_of_the_users() -> None:
    """The recordings cannot be freed during that capture: freeing them would end it."""
    model = network()
    hidden = list(model[6].parameters())
    optimizer = torch.optim.SGD([p for p in model.parameters() if all(p is not q for q in hidden)], lr=0.05)
    egd = eg.attach(optimizer, model, eg.Polar())
    train(model, optimizer)
    assert recordings(egd) == 1
    optimizer.add_param_group({"params": hidden})
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    assert egd._engine.captures._dropped
    train(model, optimizer)
    assert not egd._engine.captures._dropped
    assert recordings(egd) == 1


def test_egd_with_a_memory_inside_a_graph_of_the_users() -> None:
    ends = []
    for graphed in (False, True):
        model = network()
        optimizer = eg.EGD(eg.matrices(model), lr=0.05, transform=[eg.Momentum(0.5), eg.Polar()], capture=False)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        graph = torch.cuda.CUDAGraph()
        if graphed:
            with torch.cuda.graph(graph):
                optimizer.step()
        for count in range(4):
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.fill_(1.0 + count)
            graph.replay() if graphed else optimizer.step()
        ends.append(weights(model))
    same(*ends)


def test_two_threads_that_capture_at_once() -> None:
    results: dict[bool, list[list[Tensor]]] = {}
    for capture in (False, True):
        models = [network(seed) for seed in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
        egds = [eg.attach(*pair, capture=capture) for pair in zip(optimizers, models, strict=True)]
        errors: list[BaseException] = []

        def work(index: int, models: Any = models, optimizers: Any = optimizers, errors: Any = errors) -> None:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    train(models[index], optimizers[index])
                    torch.cuda.current_stream().synchronize()
            except BaseException as error:
                errors.append(error)

        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not errors
        assert [recordings(egd) for egd in egds] == [capture, capture]
        results[capture] = [weights(model) for model in models]
    for first, second in zip(results[False], results[True], strict=True):
        same(first, second)


def test_a_cleared_state_of_egd_starts_again() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = eg.EGD(eg.matrices(model), lr=0.05, transform=[eg.Momentum(0.5), eg.Polar()], capture=capture)
        for _ in range(3):
            train(model, optimizer)
            optimizer.state.clear()

    compared(once)


def test_gradients_from_inference_mode_in_turn() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        eg.attach(optimizer, model, eg.Polar(), capture=capture)
        generator = torch.Generator("cuda").manual_seed(3)
        for step in range(9):
            with torch.inference_mode(step in (4, 6)):
                drawn = [torch.randn(p.shape, device="cuda", generator=generator) for p in model.parameters()]
            for parameter, grad in zip(model.parameters(), drawn, strict=True):
                parameter.grad = grad
            optimizer.step()

    compared(once)


def test_gradients_that_change_dtype_and_layout_in_turn() -> None:
    def once(model: nn.Module, capture: bool) -> None:
        weight = nn.Parameter(torch.ones(40, 60, device="cuda"))
        model.register_parameter("extra", weight)
        optimizer = torch.optim.SGD([weight], lr=0.05)
        egd = eg.attach(optimizer, eg.matrices({"w": weight}, include="w"), eg.Polar(), capture=capture)
        generator = torch.Generator("cuda").manual_seed(3)
        for step in range(12):
            grad = torch.randn(40, 60, device="cuda", generator=generator)
            weight.grad = (grad, grad.t().contiguous().t(), torch.cat([grad, grad], 1)[:, ::2])[step % 3]
            optimizer.step()
        assert recordings(egd) == 3 * capture

    compared(once)


@pytest.mark.parametrize("remove", [True, False])
def test_no_memory_stays_after_it(remove: bool) -> None:
    """After `remove()`, or when optimizer and attachment are gone."""
    network()  # the libraries' own memory
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    def once() -> int:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        egd = eg.attach(optimizer, model, [eg.Momentum(), eg.Polar(precision="coarse")])
        for _ in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        assert recordings(egd) == 1
        if remove:
            egd.remove()
        del egd, optimizer, model, parameter
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    first = once()  # with the workspace of the stream
    assert once() <= first
