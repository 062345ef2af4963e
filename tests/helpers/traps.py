"""What goes wrong with several processes, each process for itself: jobs for `jobs.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from worlds import batch, divided, even, mlp, train_step, whole

import egalitarian as eg

FILTERED = (eg.GrokfastMA(2), eg.Polar())


def losing(network: nn.Module, rank: int, world: int) -> None:
    """A backward pass on this rank's part of a batch."""
    x, y = batch(0, torch.float64)
    nn.functional.cross_entropy(network(x[rank::world]), y[rank::world]).backward()


def error_of_polar(grads: list[Tensor], parameters: list[nn.Parameter]) -> float:
    """How far gradients are from the polar factors of those before the step."""
    pairs = [(parameter.grad, eg.polar(grad)) for grad, parameter in zip(grads, parameters, strict=True)]
    return max(float((new - wanted).abs().max()) for new, wanted in pairs if new is not None)


def own_gradients(kind: str, rank: int, world: int) -> tuple[float, bool]:
    """A step on gradients that DDP does not average: the error, and whether ranks had different ones."""
    torch.manual_seed(0)
    model: Any = mlp().double()
    if kind == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.weight", "2.bias"])  # type: ignore[no-untyped-call]
    network = DistributedDataParallel(model)
    if kind == "local SGD":
        alone = [dist.new_group([each]) for each in range(world)][rank]
        network.register_comm_hook(PostLocalSGDState(None, alone, 0, False), post_localSGD_hook)  # type: ignore[no-untyped-call]
    host = torch.optim.SGD(network.parameters(), lr=0.1)
    eg.attach(host, network, shard="owners")
    losing(network, rank, world)
    grad = model[2].weight.grad.clone()
    first = grad.clone()
    dist.broadcast(first, 0)
    host.step()
    return error_of_polar([grad], [model[2].weight]), bool(rank) != torch.equal(first, grad)


def apart(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Gradients that are not equal on all ranks, and steps that only some ranks make."""
    found: dict[str, Any] = {kind: own_gradients(kind, rank, world) for kind in ("ignored", "local SGD")}
    for settings, error in (
        ({"shard": "owners"}, "must step together on equal gradients, got join"),
        ({"until": eg.Until(0.9)}, r"with until=, all ranks must step together, got join\(\)"),
    ):
        network, host = attached(rank, world, **settings)
        with network.join():
            losing(network, rank, world)
            with pytest.raises(RuntimeError, match=error):
                host.step()
    network, host = attached(rank, world, shard="owners")
    network.register_comm_hook(PostLocalSGDState(None, dist.new_group(), 9), post_localSGD_hook)  # type: ignore[no-untyped-call]
    losing(network, rank, world)
    with pytest.raises(RuntimeError, match="or a hook for local SGD; pass shard='replicate'"):
        host.step()
    return found


def attached(rank: int, world: int, **settings: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    network = DistributedDataParallel(mlp().double())
    host = torch.optim.SGD(network.parameters(), lr=0.1)
    eg.attach(host, network, (eg.Momentum(0.5), eg.Polar()), **settings)
    return network, host


def refused(rank: int, world: int, folder: Path) -> float:
    """Shards that are not what they seem. Returns how far an error with another gradient changed one."""
    model = even()
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("copies", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    both = DistributedDataParallel(model, device_mesh=mesh["copies"])
    with pytest.raises(NotImplementedError, match=r"'0\.weight' must be a DTensor or whole, got the shard"):
        eg.attach(torch.optim.SGD(both.parameters(), lr=0.1), both)
    weight = nn.Parameter(distribute_tensor(torch.randn(4, 6), DeviceMesh("cpu", [1, 0]), [Shard(0)]))
    with pytest.raises(NotImplementedError, match=r"must number its ranks upwards .* got \[1, 0\]"):
        eg.attach(torch.optim.SGD([weight], lr=0.1), eg.matrices({"w": weight}, include="*"))
    network, host = attached(rank, world, shard="owners", on_nonfinite="raise")
    losing(network, rank, world)
    matrix, bias = (parameter.grad for parameter in list(network.parameters())[:2])
    assert matrix is not None
    assert bias is not None
    bias[0], before = torch.inf, matrix.clone()
    with pytest.raises(FloatingPointError, match=r"'0\.bias' must be finite"):
        host.step()
    return float((matrix - before).abs().max())


_FULL = StateDictOptions(full_state_dict=True)


def begun(how: str, world: int, own: bool) -> tuple[nn.Module, torch.optim.Optimizer, eg.Attachment | None]:
    torch.manual_seed(0)
    network = divided(mlp().double(), how, world)
    if own:
        return network, eg.EGD(eg.matrices(network), lr=0.1, momentum=0.5, transform=FILTERED), None
    host = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    return network, host, eg.attach(host, network, FILTERED)


def moved(rank: int, world: int, folder: Path) -> dict[str, dict[str, Tensor]]:
    """Two steps, the state of them to another engine, and two more steps there."""
    found = {}
    for first, second, name in (
        ("ddp", "fsdp", "fsdp"),
        ("fsdp", "ddp", "ddp"),
        ("fsdp", "hsdp", "hsdp"),
        ("fsdp", "fsdp", "EGD"),
    ):
        network, host, egd = begun(first, world, own=name == "EGD")
        for step in (0, 1):
            train_step(network, host, first, rank, world, step, torch.float64)
        weights, memory = get_state_dict(network, host, options=_FULL)
        kept = None if egd is None else egd.state_dict()  # plain tensors under DDP, DTensors otherwise
        network, host, egd = begun(second, world, own=name == "EGD")
        set_state_dict(network, host, model_state_dict=weights, optim_state_dict=memory, options=_FULL)
        if egd is not None and kept is not None:
            egd.load_state_dict(kept)
        for step in (2, 3):
            train_step(network, host, second, rank, world, step, torch.float64)
        found[name] = whole(network)
    return found
