"""What processes do together for the tests in tests/distributed. Each job returns what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from traps import apart, moved, refused
from worlds import batch, divided, mlp, train_step, trained, transformer, whole

import egalitarian as eg

WORLDS = {2: ("ddp", "fsdp"), 4: ("ddp", "fsdp", "hsdp", "fsdp-tp", "tp")}
CHAINS: dict[str, Any] = {
    "polar": eg.Polar(),
    "momentum": (eg.Momentum(0.9), eg.Polar()),
    "lowrank": eg.LowRankPolar(2),
    "sandwich": (eg.GrokfastMA(2), eg.RowNorm(), eg.GrokfastEMA(0.5), eg.Polar()),
}


def cases(how: str) -> list[dict[str, Any]]:
    if "tp" in how:
        some = [{"model": "even", "chain": chain} for chain in CHAINS]
    else:
        some = [{"model": "mlp", "chain": chain} for chain in CHAINS]
        some += [{"model": model} for model in ("thin", "cnn", "transformer")]
        some += [{"model": "transformer", "optimizer": "AdamW"}, {"model": "mlp", "decay_before": 0.01}]
    model = some[0]["model"]
    some += [{"model": model, "shard": shard} for shard in ("owners", "replicate")]
    some += [{"model": model, "steps": 20}, {"model": model, "steps": 20, "optimizer": "AdamW"}]
    for tier in ("fast", "coarse"):
        some.append({"model": model, "steps": 1, "precision": tier, "dtype": torch.float32})
    return some


def result(how: str, rank: int, world: int, case: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    case = {"shard": "owners", **case}
    if tier := case.pop("precision", None):
        case["chain"] = eg.Polar(precision=tier)
    else:
        case["chain"] = CHAINS[case.get("chain", "polar")]
    return trained(how, rank, world, **case)


def equality(rank: int, world: int, folder: Path) -> dict[str, Any]:
    return {how: [result(how, rank, world, case)[0] for case in cases(how)] for how in WORLDS[world]}


# -- bytes and calls --------------------------------------------------------------------------------------------------

SENT: list[int] = []
CALLED: list[str] = []
TRANSFORMED: list[tuple[int, ...]] = []


@contextmanager
def counting() -> Iterator[None]:
    """Notes the bytes that this rank sends in collectives of EGD, and the names of all others."""
    names = (
        "all_to_all_single",
        "all_reduce",
        "broadcast",
        "all_gather_into_tensor",
        "all_gather",
        "reduce_scatter_tensor",
    )
    plain = {name: getattr(dist, name) for name in names}

    def counted(out: Tensor, packed: Tensor, *rest: Any, **named: Any) -> Any:
        SENT.append(packed.nbytes)
        return plain["all_to_all_single"](out, packed, *rest, **named)

    def noted(name: str) -> Callable[..., Any]:
        def call(*rest: Any, **named: Any) -> Any:
            CALLED.append(name)
            return plain[name](*rest, **named)

        return call

    for name in names:
        setattr(dist, name, counted if name == "all_to_all_single" else noted(name))
    yield
    for name in names:
        setattr(dist, name, plain[name])


class Counted(eg.Polar):
    """Notes the shape of every matrix that this rank computes."""

    def __call__(self, G: Tensor, site: Any) -> Tensor:
        TRANSFORMED.append(tuple(G.shape))
        return super().__call__(G, site)


def one_step(how: str, rank: int, world: int, model: nn.Module, **settings: Any) -> Any:
    torch.manual_seed(0)
    network = divided(model, how, world)
    host = torch.optim.SGD(network.parameters(), lr=0.1)
    egd = eg.attach(host, network, Counted(), **settings)
    x, y = batch(0, torch.float32)
    nn.functional.cross_entropy(network(x[rank::world]), y[rank::world]).backward()
    for each in (SENT, CALLED, TRANSFORMED):
        each.clear()
    host.step()
    return egd


def measure(rank: int, world: int, folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for how in ("ddp", "fsdp"):
        for model in (mlp, transformer):
            torch.manual_seed(0)
            with counting():
                egd = one_step(how, rank, world, model(), shard="owners")
            size = sum(entry.parameter.numel() * 4 for entry in egd.plan.taken)
            found[how, model.__name__] = (sum(SENT), len(SENT), list(CALLED), list(TRANSFORMED), size, str(egd.plan))
    egd = one_step("ddp", rank, world, mlp())
    found["auto"] = str(egd.plan)
    return found


# -- one decision ---------------------------------------------------------------------------------------------------------


def decide(rank: int, world: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for how in ("ddp", "fsdp", "hsdp"):
        torch.manual_seed(0)
        network = divided(mlp().double(), how, world)
        host = torch.optim.SGD(network.parameters(), lr=0.1)
        egd = eg.attach(host, network, until=eg.Until(0.95), shard="owners")
        active = []
        for step in range(4):
            if step == 1:
                egd.observe(0.99 if rank else 0.1)  # the first rank says no
            if step == 2 and rank == 0:
                egd.observe(0.99)  # and then, alone, yes
            train_step(network, host, how, rank, world, step, torch.float64)
            active.append(egd.active)
        found[how] = (active, whole(network))
    return found


# -- gradients that are not finite, experts, other precisions, the optimizer EGD -------------------------------------------


class Experts(nn.Module):
    """Experts with a leading axis, sharded along it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(5, 6, 8)), nn.Parameter(torch.randn(5, 8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.up).matmul(self.down).sum(0)


def broken(how: str, rank: int, world: int, on_nonfinite: Any = "keep") -> dict[str, Tensor]:
    """Two steps, the first with one entry that is not finite, in a network with a filter."""
    torch.manual_seed(0)
    network = divided(mlp().double(), how, world)
    host = torch.optim.SGD(network.parameters(), lr=0.1)
    eg.attach(host, network, (eg.Momentum(0.5), eg.Polar()), on_nonfinite=on_nonfinite, shard="owners")
    for step in range(2):
        x, y = batch(step, torch.float64)
        nn.functional.cross_entropy(network(x[rank::world]), y[rank::world]).backward()
        grad: Any = next(network.parameters()).grad
        here = grad.to_local() if hasattr(grad, "to_local") else grad
        if step == 0 and (rank == 0 or how != "fsdp"):
            here[0, 0] = torch.inf
        host.step()
        if step == 0:
            with torch.no_grad():
                first: Any = next(network.parameters())
                (first.to_local() if hasattr(first, "to_local") else first).nan_to_num_(0.0, 0.0, 0.0)
        host.zero_grad()
    return whole(network)


def others(rank: int, world: int, folder: Path) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    found: dict[str, Any] = {how: broken(how, rank, world) for how in ("ddp", "fsdp")}
    with pytest.raises(FloatingPointError, match=r"'0\.weight' must be finite, got 1 non-finite of 78 entries"):
        broken("fsdp", rank, world, "raise")
    mesh = init_device_mesh("cpu", (world,))
    for name, policy in {"experts": None, "mixed": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}.items():
        torch.manual_seed(0)
        network: nn.Module = Experts() if name == "experts" else mlp()
        fully_shard(network, mesh=mesh, **({"mp_policy": policy} if policy else {}))
        plan = eg.matrices(network, include="up", stack="up") if name == "experts" else eg.matrices(network)
        plan = eg.matrices(network, include=["up", "down"]) if name == "experts" else plan
        host = torch.optim.SGD(network.parameters(), lr=0.1)
        egd = eg.attach(host, plan)
        x, y = batch(0, torch.float32)
        nn.functional.cross_entropy(network(x[rank::world]).float(), y[rank::world]).backward()
        host.step()
        entry = egd.plan.taken[0]
        found[name] = [target.fold(entry.parameter.grad.full_tensor()) for target in entry.targets]
        found[name + " plan"] = str(egd.plan)
    torch.manual_seed(0)
    network = divided(mlp().double(), "fsdp", world)
    own = eg.EGD(eg.matrices(network), lr=0.1, momentum=0.9, transform=(eg.Momentum(0.5), eg.Polar()))
    for step in range(3):
        train_step(network, own, "fsdp", rank, world, step, torch.float64)
    found["EGD"] = whole(network)
    return found


# -- checkpoints ----------------------------------------------------------------------------------------------------------


def build(how: str, world: int) -> tuple[nn.Module, torch.optim.Optimizer, eg.Attachment]:
    torch.manual_seed(0)
    network = divided(mlp().double(), how, world)
    host = torch.optim.AdamW(network.parameters(), lr=0.01)
    return network, host, eg.attach(host, network, (eg.GrokfastMA(2), eg.Polar()), until=eg.Until(0.9))


def state_of(network: nn.Module, host: torch.optim.Optimizer, egd: eg.Attachment) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(network, host)
    return {"model": model, "optimizer": optimizer, "egd": egd.state_dict()}


def save(rank: int, world: int, folder: Path) -> None:
    network, host, egd = build("fsdp", world)
    for step in range(3):
        train_step(network, host, "fsdp", rank, world, step, torch.float64)
    dcp.save(state_of(network, host, egd), checkpoint_id=folder / "saved")


def resume(rank: int, world: int, folder: Path) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.state_dict import set_state_dict

    how = "hsdp" if world > 1 else "fsdp"
    network, host, egd = build(how, world)
    state = state_of(network, host, egd)
    dcp.load(state, checkpoint_id=folder / "saved")
    set_state_dict(network, host, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    egd.load_state_dict(state["egd"])
    assert egd.state_dict()["step"] == 3
    for step in range(3, 5):
        train_step(network, host, how, rank, world, step, torch.float64)
    return whole(network)


JOBS: dict[int, tuple[Callable[[int, int, Path], Any], ...]] = {
    2: (save, equality, others, apart, refused, moved),
    4: (equality, measure, decide, resume),
}
"""By the number of processes. Those with two run first: they save what those with four resume."""


def all_jobs(rank: int, world: int, folder: Path) -> None:
    found = {job.__name__: job(rank, world, folder) for job in JOBS[world]}
    torch.save(found, folder / f"{world}-{rank}.pt")
