"""What ranks promise each other: bytes, one owner per matrix, one decision, finite gradients, resumed runs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import broken, build, resume
from torch import Tensor
from worlds import group, mlp, train_step, trained, transformer, whole

import egalitarian as eg


@pytest.fixture
def measured(found: Any) -> list[dict[Any, Any]]:
    return [each["measure"] for each in found[4]]


@pytest.fixture
def other(found: Any) -> list[dict[str, Any]]:
    return [each["others"] for each in found[2]]


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("model", ["mlp", "transformer"])
def test_bytes_and_collectives_are_as_promised(measured: list[dict[Any, Any]], how: str, model: str) -> None:
    """Sharded: (N-1)/N of the gradients there and as much back, with two collectives. Replicas: results only, with one."""
    world, rows = len(measured), [each[how, model] for each in measured]
    sent, size = [row[0] for row in rows], rows[0][4]
    assert sum(sent) <= (2 * (world - 1) / world if how == "fsdp" else world - 1) * size
    assert {row[1] for row in rows} == {2 if how == "fsdp" else 1}
    assert {name for row in rows for name in row[2]} == set()
    if model == "transformer":
        assert max(sent) <= 1.5 * sum(sent) / world


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_each_matrix_is_computed_once_and_the_work_is_spread(measured: list[dict[Any, Any]], how: str) -> None:
    rows = [each[how, "transformer"][3] for each in measured]
    every = [shape for row in rows for shape in row]
    with torch.device("meta"):
        assert sorted(every) == sorted((t.rows, t.columns) for t in eg.matrices(transformer()).targets)
    assert all(rows)


def test_the_plan_shows_owner_bytes_and_mesh(measured: list[dict[Any, Any]]) -> None:
    sharded, replicas, auto = measured[0]["fsdp", "mlp"][5], measured[0]["ddp", "mlp"][5], measured[0]["auto"]
    assert "fsdp 4: one owner per matrix, estimated " in sharded
    assert "rank 0 of fsdp 4, " in sharded
    assert "MiB moved" in sharded
    assert "4 replicas: one owner per matrix" in replicas
    assert "4 replicas: every rank computes all, estimated " in auto  # small matrices: sending takes longer
    assert measured[1]["fsdp", "mlp"][5] == sharded


def test_the_first_rank_decides_for_all(found: Any) -> None:
    ranks = [each["decide"] for each in found[4]]
    for how in ("ddp", "fsdp", "hsdp"):
        assert [each[how][0] for each in ranks] == [[True, True, False, False]] * 4
        for name, parameter in ranks[0][how][1].items():
            assert all(torch.equal(each[how][1][name], parameter) for each in ranks)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_a_gradient_that_is_finite_on_other_ranks_only_changes_no_memory(other: list[dict[str, Any]], how: str) -> None:
    for name, parameter in broken("alone", 0, 1).items():
        for each in other:
            torch.testing.assert_close(each[how][name], parameter)


def test_experts_are_equalised_as_whole_matrices(other: list[dict[str, Any]]) -> None:
    for matrix in other[0]["experts"]:
        values = torch.linalg.svdvals(matrix)
        torch.testing.assert_close(values, torch.ones_like(values), atol=1e-4, rtol=0)


def test_a_mixed_precision_policy_counts_as_half_precision(other: list[dict[str, Any]]) -> None:
    assert "coarse" in other[0]["mixed plan"]
    assert other[0]["mixed"][0].dtype == torch.float32


def test_the_optimizer_egd_divides_its_matrices_too(other: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    network = mlp().double()
    own = eg.EGD(eg.matrices(network), lr=0.1, momentum=0.9, transform=(eg.Momentum(0.5), eg.Polar()))
    for step in range(3):
        train_step(network, own, "alone", 0, 1, step, torch.float64)
    for name, parameter in whole(network).items():
        torch.testing.assert_close(other[1]["EGD"][name], parameter)


def test_on_one_rank_it_is_the_plain_path_bitwise(tmp_path: Path) -> None:
    chain = (eg.Momentum(0.5), eg.Polar())
    alone = trained("alone", 0, 1, chain=chain)[0]
    with group(tmp_path):
        for how in ("ddp", "fsdp"):
            found, egd = trained(how, 0, 1, chain=chain)
            assert all(torch.equal(found[name], parameter) for name, parameter in alone.items())
            assert "rank" not in str(egd.plan)


@pytest.mark.parametrize("shard", ["owner", None, 1])
def test_an_unknown_way_to_share_is_refused(shard: Any) -> None:
    model = mlp()
    with pytest.raises(ValueError, match="shard must be 'auto', 'owners' or 'replicate', got"):
        eg.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, shard=shard)
    with pytest.raises(ValueError, match="shard must be 'auto', 'owners' or 'replicate', got"):
        eg.EGD(eg.matrices(model), lr=0.1, shard=shard)


def test_a_run_resumes_with_another_world_size_and_mesh(found: Any, shared: Path, tmp_path: Path) -> None:
    """Saved by two processes; resumed by four on another mesh, and by one."""
    network, host, _ = build("alone", 1)
    for step in range(5):
        train_step(network, host, "alone", 0, 1, step, torch.float64)
    with group(tmp_path):
        alone = resume(0, 1, shared)
    for name, parameter in whole(network).items():
        torch.testing.assert_close(found[4][0]["resume"][name], parameter)
        torch.testing.assert_close(alone[name], parameter)


# -- a rank that dies ---------------------------------------------------------------------------------------------------


class Deadly(eg.Polar):
    """Kills its process in the middle of the second step, on the last rank."""

    def __call__(self, G: Tensor, site: Any) -> Tensor:
        if site.step == 1 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(G, site)


def die(rank: int, world: int, folder: Path) -> None:
    store = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=20))
    failed = ""
    try:
        trained("fsdp", rank, world, model="mlp", chain=Deadly())
    except RuntimeError as error:
        failed = str(error)
    (folder / f"{rank}.txt").write_text(failed)
    gc.collect()  # else gloo's threads would abort at exit now and then
    dist.destroy_process_group()
    raise SystemExit(3 if failed else 0)


def test_when_a_rank_dies_in_a_step_the_others_end_with_an_error(tmp_path: Path) -> None:
    begin = multiprocessing.get_context("spawn")
    processes = [begin.Process(target=die, args=(rank, 3, tmp_path)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [3, 3, -signal.SIGKILL]
    assert all((tmp_path / f"{rank}.txt").read_text() for rank in (0, 1))
