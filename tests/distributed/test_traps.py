"""What must not be divided, what must not hang, and what moves between engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from traps import FILTERED
from worlds import group, mlp, train_step, whole

import egalitarian as eg
from egalitarian.distributed import Ranks as DividedRanks
from egalitarian.distributed.spread import spread_of

Ranks = list[dict[str, Any]]


@pytest.fixture
def two(found: Any) -> Ranks:
    return list(found[2])


@pytest.mark.parametrize("kind", ["ignored", "local SGD"])
def test_each_rank_equalises_a_gradient_that_ddp_does_not_average(two: Ranks, kind: str) -> None:
    for error, differs in (each["apart"][kind] for each in two):
        assert differs
        assert error < 1e-10


def test_an_error_of_one_gradient_leaves_the_divided_ones_as_they_were(two: Ranks) -> None:
    assert [each["refused"] for each in two] == [0.0, 0.0]


@pytest.fixture
def alone() -> dict[str, Tensor]:
    torch.manual_seed(0)
    network = mlp().double()
    host = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    eg.attach(host, network, FILTERED)
    for step in range(4):
        train_step(network, host, "alone", 0, 1, step, torch.float64)
    return whole(network)


@pytest.mark.parametrize("there", ["ddp", "fsdp", "hsdp", "EGD"])
def test_a_state_moves_between_engines(two: Ranks, alone: dict[str, Tensor], there: str) -> None:
    for name, parameter in alone.items():
        for each in two:
            torch.testing.assert_close(each["moved"][there][name], parameter)


def test_groups_over_several_axes_end_with_their_world() -> None:
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    kept = []  # the meshes of the first world are equal to those of the second
    for _ in range(2):
        dist.init_process_group("fake", rank=0, world_size=8, store=fake.FakeStore())
        mesh = init_device_mesh("cpu", (2, 2, 2))
        kept.append(DTensor.from_local(torch.zeros(3, 4), mesh, [Replicate(), Shard(0), Shard(1)], run_check=False))
        assert dist.get_process_group_ranks(spread_of(kept[-1]).group) == [0, 1, 2, 3]
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
def test_flat_shards_of_fsdp1_are_refused_by_name(tmp_path: Path) -> None:
    with group(tmp_path):
        sharded = torch.distributed.fsdp.FullyShardedDataParallel(mlp(), device_id=torch.device("cpu"))
        with pytest.raises(ValueError, match=r"flat shards \(FSDP1\) are not matrices: use FSDP2 or DDP"):
            eg.matrices(sharded)
        del sharded


def test_removing_egd_frees_the_graphs_of_divided_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    egd = eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    freed: list[DividedRanks] = []
    monkeypatch.setattr(DividedRanks, "release", lambda ranks: freed.append(ranks))
    egd.remove()
    assert len(freed) == 1
