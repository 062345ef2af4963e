"""The library on CUDA. Skipped without a GPU; on one, run `PYTHONPATH=src python -m pytest tests/gpu`."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy import batch, network

import egalitarian as eg
from egalitarian.apply import captured
from egalitarian.apply.batch import SHARED_ELEMENTS
from egalitarian.kernels import RTOL, Method, Tier

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def spectrum_matrix(shape: tuple[int, int], values: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    u = torch.linalg.qr(torch.randn(shape[0], len(values), generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(shape[1], len(values), generator=generator, dtype=torch.float64)).Q
    return ((u * values) @ v.T).float()


CASES = {
    "condition 1e2": torch.logspace(0, -2, 64, dtype=torch.float64),
    "condition 1e4": torch.logspace(0, -4, 64, dtype=torch.float64),
    "condition 1e5, large": 80 * torch.logspace(0, -5, 64, dtype=torch.float64),
    "rank 30, large": 80 * torch.logspace(0, -1, 30, dtype=torch.float64),
    "clustered at the cut-off": torch.cat([torch.ones(8), torch.full((40,), 1.2e-6)]).double(),
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.parametrize("shape", [(100, 160), (160, 100), (194, 512)])
@pytest.mark.parametrize("method", ["eigh", "polynomial", "svd"])
def test_exact_is_at_least_as_accurate_as_a_float32_svd(values: Tensor, shape: tuple[int, int], method: Method) -> None:
    G = spectrum_matrix(shape, values)
    ours = eg.polar(G.cuda(), method=method).cpu().double()
    out = torch.linalg.svdvals(ours)
    assert out[0] <= 1 + 1e-4
    if values[-1] / values[0] > 10 * RTOL[torch.float32]:
        u, s, vh = torch.linalg.svd(G.double(), full_matrices=False)
        kept = s > RTOL[torch.float32] * s[0]
        truth = (u * kept) @ vh
        u, s, vh = torch.linalg.svd(G.cuda(), full_matrices=False)
        single = ((u * kept.cuda()) @ vh).cpu().double()
        assert (ours - truth).norm() <= (single - truth).norm()
        assert out[len(values) - 1] >= 1 - 1e-4
        assert len(out) == len(values) or out[len(values)] <= 1e-2


def test_nan_and_zero_matrices_do_not_affect_others_of_a_batch() -> None:
    G = torch.randn(4, 20, 30, device="cuda")
    G[1, 0, 0], G[2] = torch.nan, 0
    P = eg.polar(G)
    assert P[1].isnan().all()
    assert not P[2].any()
    for element in (0, 3):
        torch.testing.assert_close(P[element], eg.polar(G[element]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_cpu_and_cuda_agree(dtype: torch.dtype) -> None:
    G = torch.randn(3, 12, 20).to(dtype)
    tolerance = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps} if dtype != torch.float64 else {}
    torch.testing.assert_close(eg.polar(G.cuda()).cpu(), eg.polar(G), **tolerance)
    torch.testing.assert_close(eg.polar_lowrank(G.cuda(), 5, seed=7).cpu(), eg.polar_lowrank(G, 5, seed=7), **tolerance)
    torch.testing.assert_close(eg.normalize(G.cuda()).cpu(), eg.normalize(G), **tolerance)


def loss_of(model: nn.Module, step: int = 0) -> Tensor:
    x, y = batch(step)
    return nn.functional.cross_entropy(model(x.cuda()), y.cuda())


CHAINS: dict[str, Any] = {
    "polar": eg.Polar(),
    "lowrank": eg.LowRankPolar(3),
    "muon's order": [eg.Momentum(), eg.Polar()],
    "grokfast": [eg.GrokfastMA(2), eg.GrokfastEMA(), eg.RowNorm()],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_the_doors_agree_bitwise(chain: Any) -> None:
    by_hook, by_class = network().cuda(), network().cuda()
    hooked = torch.optim.SGD(by_hook.parameters(), lr=0.01, momentum=0.9)
    eg.attach(hooked, by_hook, chain)
    egd = eg.EGD(eg.matrices(by_class), lr=0.01, momentum=0.9, transform=chain)
    for model, optimizer in ((by_hook, hooked), (by_class, egd)):
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(by_hook.parameters(), by_class.parameters(), strict=True))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step_under_autocast_and_a_grad_scaler_is_equalised(options: dict[str, Any], dtype: torch.dtype) -> None:
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    egd = eg.attach(optimizer, model, eg.Polar())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14)
    before = model[0].weight.detach().clone()
    with torch.autocast("cuda", dtype=dtype):
        loss = loss_of(model)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    values = torch.linalg.svdvals((before - model[0].weight.detach()).double())
    torch.testing.assert_close(values, torch.ones_like(values), rtol=1e-3, atol=0)
    assert egd.state_dict()["compute"] == "torch.float16"


@pytest.mark.parametrize(
    ("compute", "setting"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), ("tf32", "tf32")], ids=str
)
def test_a_gradient_keeps_its_true_rank(compute: Any, setting: Any) -> None:
    """The gradient of a batch of 16 has 16 directions, in any precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    x, y = torch.randn(16, 256, device="cuda"), torch.randint(10, (16,), device="cuda")
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
    half = None if compute == "tf32" else compute
    with torch.autocast("cuda", dtype=half, enabled=half is not None):
        loss = nn.functional.cross_entropy(model(x), y)
    (loss * 1024).backward()
    torch.backends.cuda.matmul.allow_tf32 = allowed
    eg.equalize_(eg.matrices(model), eg.Polar(compute=setting))
    for layer in (model[0], model[2]):
        assert int((torch.linalg.svdvals(layer.weight.grad.double()) > 0.5).sum()) == 16


def test_a_step_of_a_stack_does_not_synchronise() -> None:
    """Switches, NaN guards, memories and the polar factor read no value; only eigh and svd synchronise."""
    weights = {"w": nn.Parameter(torch.zeros(4, 6, 5, device="cuda")), "b": nn.Parameter(torch.zeros(4, 6, device="cuda"))}
    plan = eg.matrices(weights, include="w", stack=True)
    optimizer = torch.optim.SGD(weights.values(), lr=0.1, foreach=True)
    egd = eg.attach(
        optimizer, plan, [eg.GrokfastEMA(), eg.RowNorm(), eg.Polar(), eg.Polar(precision="fast")], decay_before=0.1
    )
    egd.off([False, True, False, False])
    for parameter in weights.values():
        parameter.grad = torch.ones_like(parameter)
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def equal_layers(count: int) -> tuple[nn.Sequential, eg.Plan]:
    model = nn.Sequential(*(nn.Linear(48, 32, bias=False) for _ in range(count))).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, device="cuda")
    return model, eg.matrices(model, head=None)


@pytest.mark.parametrize("chain", [eg.Polar(), eg.RowNorm(), [eg.Momentum(), eg.Polar()]], ids=repr)
def test_equal_layers_share_a_call(chain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def polar(G: Tensor, **options: Any) -> Tensor:
        seen.append(tuple(G.shape))
        return eg.polar(G, **options)

    monkeypatch.setattr("egalitarian.transforms.matrix.polar", polar)
    model, plan = equal_layers(6)
    model[2].weight.grad[0, 0] = torch.nan
    eg.equalize_(plan, chain)
    assert seen in ([], [(6, 32, 48)])
    monkeypatch.setitem(SHARED_ELEMENTS, "cuda", 0)
    alone, plan = equal_layers(6)
    alone[2].weight.grad[0, 0] = torch.nan
    eg.equalize_(plan, chain)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("chain", [eg.Polar(method="polynomial"), eg.LowRankPolar(8, rtol=1e-6)], ids=repr)
def test_equal_layers_do_not_synchronise(chain: Any) -> None:
    """Also the randomized factor by the polynomial, on a GPU with fast float64 or for small matrices."""
    _, plan = equal_layers(4)
    eg.equalize_(plan, chain)
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        eg.equalize_(plan, chain)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_drawing_a_sketch_during_capture_is_refused() -> None:
    G = torch.randn(20, 30, device="cuda")
    eg.polar_lowrank(G, 4)
    with pytest.raises(RuntimeError, match="outside a CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        eg.polar_lowrank(G, 4)


@pytest.mark.parametrize("shape", [(100, 160), (160, 100)])
def test_the_randomized_factor_equals_that_of_the_cpu(shape: tuple[int, int]) -> None:
    G = torch.stack([spectrum_matrix(shape, values[:64]) for values in list(CASES.values())[:4]])
    for rank in (8, 64):
        ours, theirs = eg.polar_lowrank(G.cuda(), rank, seed=1).cpu(), eg.polar_lowrank(G, rank, seed=1)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_exact_egd_allocates_no_memory_between_steps() -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    eg.attach(optimizer, model)
    used = []
    for _ in range(captured.WARM_UP + 4):
        model(torch.randn(64, 512, device="cuda")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert used[-1] == used[captured.WARM_UP + 1]  # the step after the capture


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("shape", [(194, 512), (3, 60, 40), (1600, 1600)])
def test_a_graph_can_capture_the_polar_factor(shape: tuple[int, ...], precision: Tier) -> None:
    G = torch.randn(shape, device="cuda")
    eager = eg.polar(G, precision=precision)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        eg.polar(G, precision=precision)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        P = eg.polar(G, precision=precision)
    graph.replay()
    torch.testing.assert_close(P, eager, rtol=0, atol=1e-6 if precision == "exact" else 1e-2)
    G.copy_(torch.randn(shape, device="cuda"))
    graph.replay()
    torch.testing.assert_close(P, eg.polar(G, precision=precision), rtol=0, atol=1e-6 if precision == "exact" else 1e-2)


@pytest.mark.parametrize("shape", [(194, 512), (64, 100, 100), (1600, 1700)])
def test_fast_has_an_error_of_at_most_a_thousandth(shape: tuple[int, ...]) -> None:
    values = torch.logspace(0, -2.9, min(shape[-2:]), dtype=torch.float64)
    G = spectrum_matrix(shape[-2:], values).cuda().expand(shape).contiguous()
    error = (eg.polar(G, precision="fast") - eg.polar(G, method="svd")).double()
    assert error.flatten(-2).norm(dim=-1).max() <= 1e-3 * min(shape[-2:]) ** 0.5


def test_a_captured_step_follows_the_switch() -> None:
    """The mask of the switch keeps its memory, so that a captured graph reads its changes."""
    weights = {"w": nn.Parameter(torch.zeros(2, 6, 5, device="cuda"))}
    optimizer = torch.optim.SGD(weights.values(), lr=1.0)
    egd = eg.attach(optimizer, eg.matrices(weights, include="w", stack=True))
    plain = torch.randn(2, 6, 5, device="cuda")
    weights["w"].grad = plain.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    egd.off([True, False])
    weights["w"].grad.copy_(plain)
    with torch.no_grad():
        weights["w"].zero_()
    graph.replay()
    torch.testing.assert_close(-weights["w"].detach()[0], plain[0])
    torch.testing.assert_close(-weights["w"].detach()[1], eg.polar(plain[1]), rtol=0, atol=1e-5)
