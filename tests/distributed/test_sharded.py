"""Mistakes with sharded parameters, and torch's own optimizers around another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import egalitarian as eg


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.usefixtures("process_group")
def test_sharding_after_attach_says_at_the_first_step_that_the_optimizer_is_stale() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eg.attach(optimizer, model)
    fsdp.fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    model(torch.randn(4, 6)).sum().backward()
    with pytest.warns(UserWarning, match=r"'0\.weight' that the optimizer holds: fully_shard came after .*; build .* last"):
        optimizer.step()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", ["PostLocalSGDOptimizer", "ZeroRedundancyOptimizer"])
def test_optimizers_of_torch_around_another_one_equalise_as_that_one_does(kind: str) -> None:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

    def trained(around: bool) -> nn.Module:
        torch.manual_seed(0)
        model = small()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if around and kind == "PostLocalSGDOptimizer":
            optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=2, warmup_steps=100))
        elif around:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        egd = eg.attach(optimizer, model)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
        assert egd.state_dict()["step"] == 3
        if kind == "ZeroRedundancyOptimizer" and around:
            optimizer.consolidate_state_dict()
        assert optimizer.state_dict()["egalitarian"]["step"] == 3
        return model

    for one, other in zip(trained(True).parameters(), trained(False).parameters(), strict=True):
        assert torch.equal(one, other)


def test_equalize_refuses_a_dtensor_by_name_and_names_what_takes_it(tmp_path: Path) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        fsdp.fully_shard(model, mesh=mesh)
        with pytest.raises(NotImplementedError, match=r"'0\.weight' must be .* got a DTensor.*; use attach"):
            eg.equalize_(eg.matrices(model))
    finally:
        dist.destroy_process_group()
