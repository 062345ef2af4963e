"""Matrices that several ranks hold, on a GPU: NCCL with one process, and gloo with two on one GPU."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from worlds import batch, mlp, whole

import egalitarian as eg

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def train(rank: int, world: int, how: str, precision: Any, offload: bool = False) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    torch.manual_seed(0)
    model: nn.Module = mlp().cuda()
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        policy = CPUOffloadPolicy() if offload else OffloadPolicy()
        fully_shard(model, mesh=init_device_mesh("cuda", (world,)), offload_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    egd = eg.attach(optimizer, model, eg.Polar(precision=precision), shard="owners")
    for step in range(6):  # with CUDA graphs from the third on
        x, y = (each.cuda() for each in batch(step, torch.float32))
        nn.functional.cross_entropy(model(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: each.cpu() for name, each in whole(model).items()}, str(egd.plan)


def work(rank: int, world: int, backend: str, folder: Path) -> None:
    os.environ |= {"NCCL_DEBUG": "WARN"}
    torch.cuda.set_device(0)
    store = f"file://{folder}/rendezvous"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=90))
    found = {
        (how, precision): train(rank, world, how, precision)
        for how in ("ddp", "fsdp")
        for precision in ("exact", "fast", "coarse")
    }
    if backend == "nccl":
        found["offload", "exact"] = train(rank, world, "fsdp", "exact", offload=True)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(("backend", "world"), [("nccl", 1), ("gloo", 2)])
def test_processes_on_one_gpu_train_as_one(tmp_path: Path, backend: str, world: int) -> None:
    mp.spawn(work, (world, backend, tmp_path), nprocs=world)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(world)]
    for (how, precision), (weights, plan) in found[0].items():
        alone, _ = train(0, 1, "alone", precision)
        tolerance = {"exact": 1e-4, "fast": 5e-3, "coarse": 5e-2}[precision]
        for name, parameter in alone.items():
            assert (weights[name] - parameter).abs().max() <= tolerance, (how, precision, name)
            assert all(torch.equal(each[how, precision][0][name], weights[name]) for each in found)
        assert ("rank 0 of" in plan) == (world > 1)
