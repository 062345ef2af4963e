"""FSDP2's DTensors are refused at attachment until they are supported, not equalised shard by shard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import egalitarian as eg


def test_a_dtensor_is_refused_by_name(tmp_path: Path) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        fsdp.fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(NotImplementedError, match=r"'0\.weight' is a DTensor"):
            eg.attach(optimizer, model)
        with pytest.raises(NotImplementedError, match="DTensor"):
            eg.EGD(model.parameters(), lr=0.1)
        with pytest.raises(NotImplementedError, match="DTensor"):
            eg.equalize_(eg.matrices(model))
    finally:
        dist.destroy_process_group()
