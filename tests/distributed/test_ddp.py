"""DistributedDataParallel, two processes over gloo: replicas stay bitwise equal, and equal to one process to rounding."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import egalitarian as eg

CHAINS: dict[str, Any] = {"polar": eg.Polar(), "lowrank": eg.LowRankPolar(3)}


def train(chain: str, rank: int = 0, world: int = 1) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    replica = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
    eg.attach(optimizer, replica, CHAINS[chain])
    torch.manual_seed(rank)  # the sketch must not depend on it
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)
        nn.functional.cross_entropy(replica(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def train_a_replica(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for chain in CHAINS:
        torch.save(train(chain, rank, world=2).state_dict(), folder / f"{chain}-{rank}.pt")
    gc.collect()  # DDP modules are in reference cycles and hold the process group, whose threads would abort at exit
    dist.barrier()
    dist.destroy_process_group()


def test_replicas_are_equal_bitwise_and_equal_one_process_to_rounding(tmp_path: Path) -> None:
    mp.spawn(train_a_replica, (tmp_path,), nprocs=2)
    for chain in CHAINS:
        first, second = (torch.load(tmp_path / f"{chain}-{rank}.pt", weights_only=True) for rank in (0, 1))
        for name, parameter in train(chain).state_dict().items():
            assert torch.equal(first[name], second[name])
            torch.testing.assert_close(first[name], parameter, rtol=1e-4, atol=1e-5)
