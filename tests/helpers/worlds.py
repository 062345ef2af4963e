"""Processes that train together over gloo, and one process that trains the same alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import egalitarian as eg

Job = Callable[..., None]


@contextmanager
def group(folder: Path, rank: int = 0, world: int = 1, seconds: int = 60) -> Iterator[None]:
    """A process group over gloo."""
    store = f"file://{folder}/rendezvous-of-{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=seconds))
    yield
    gc.collect()  # DDP modules are in reference cycles and hold the process group, whose threads would abort at exit
    dist.barrier()
    dist.destroy_process_group()


def _begin(rank: int, job: Job, folder: Path, world: int, *rest: Any) -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with group(folder, rank, world):
        job(rank, world, folder, *rest)


def together(job: Job, folder: Path, world: int, *rest: Any) -> None:
    """Calls `job(rank, world, folder, ...)` in that many processes of one group."""
    folder.mkdir(exist_ok=True)
    mp.spawn(_begin, (job, folder, world, *rest), nprocs=world)


class Block(nn.Module):
    """A transformer block with a fused projection."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 20), nn.Linear(20, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(torch.tanh(self.up(x)))


def mlp() -> nn.Module:
    """Its sizes do not divide by the number of ranks."""
    return nn.Sequential(
        nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def thin() -> nn.Module:
    """Some ranks hold nothing of it."""
    return nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))


def even() -> nn.Module:
    """Its sizes divide by the number of ranks, as FSDP demands next to tensor parallelism."""
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))


def cnn() -> nn.Module:
    flat = [nn.Flatten(), nn.Linear(5 * 2, 3)]
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 6, 3), nn.Tanh(), nn.Conv1d(6, 5, 3), nn.Tanh(), *flat)


def transformer() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (3, 2)), nn.Linear(2, 12), Block(), Block(), nn.Flatten(), nn.Linear(36, 3))


MODELS = {each.__name__: each for each in (mlp, thin, even, cnn, transformer)}


def divided(model: nn.Module, how: str, world: int) -> nn.Module:
    """The model as the engine of that name holds it: alone, ddp, fsdp, hsdp, tp or fsdp-tp."""
    if how == "alone":
        return model
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    elif how == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "shards"))
    elif how in ("tp", "fsdp-tp"):
        both = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("fsdp", "tp"))
        parallelize_module(model, both["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if how == "tp":
            return model
        mesh = both["fsdp"]
    else:
        raise ValueError(how)
    for layer in model:  # type: ignore[union-attr]
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def batch(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=generator).to(dtype), torch.randint(3, (16,), generator=generator)


def trained(
    how: str,
    rank: int,
    world: int,
    model: str = "mlp",
    steps: int = 3,
    dtype: torch.dtype = torch.float64,
    optimizer: str = "SGD",
    chain: Any = None,
    **settings: Any,
) -> tuple[dict[str, Tensor], Any]:
    """The weights after some steps, whole, and the attachment."""
    torch.manual_seed(0)
    network = divided(MODELS[model]().to(dtype), how, world)
    host = getattr(torch.optim, optimizer)(network.parameters(), lr=0.1)
    egd = eg.attach(host, network, chain or eg.Polar(), **settings)
    for step in range(steps):
        train_step(network, host, how, rank, world, step, dtype)
    return whole(network), egd


def train_step(
    network: nn.Module, host: torch.optim.Optimizer, how: str, rank: int, world: int, step: int, dtype: torch.dtype
) -> None:
    x, y = batch(step, dtype)
    if how == "tp":  # all ranks see all data
        rank, world = 0, 1
    elif how == "fsdp-tp":
        rank, world = rank // 2, world // 2
    nn.functional.cross_entropy(network(x[rank::world]), y[rank::world]).backward()
    host.step()
    host.zero_grad()


def whole(network: nn.Module) -> dict[str, Tensor]:
    state = {name.removeprefix("module."): parameter.detach() for name, parameter in network.named_parameters()}
    return {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in state.items()}
