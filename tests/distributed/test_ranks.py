"""Matrices that several processes hold: equal to one process, whoever computes them, and no more bytes than promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import together, trained

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
        some = [dict(model="even", chain=chain) for chain in CHAINS]
    else:
        some = [dict(model="mlp", chain=chain) for chain in CHAINS]
        some += [dict(model=model) for model in ("thin", "cnn", "transformer")]
        some += [dict(model="transformer", optimizer="AdamW"), dict(model="mlp", decay_before=0.01)]
    model = some[0]["model"]
    some += [dict(model=model, shard=shard) for shard in ("owners", "replicate")]
    some += [dict(model=model, steps=20), dict(model=model, steps=20, optimizer="AdamW")]
    for tier in ("fast", "coarse"):
        some.append(dict(model=model, steps=1, precision=tier, dtype=torch.float32))
    return some


def result(how: str, rank: int, world: int, case: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
    case = {"shard": "owners", **case}
    if tier := case.pop("precision", None):
        case["chain"] = eg.Polar(precision=tier)
    else:
        case["chain"] = CHAINS[case.get("chain", "polar")]
    return trained(how, rank, world, **case)


def train_all(rank: int, world: int, folder: Path) -> None:
    found = {how: [result(how, rank, world, case)[0] for case in cases(how)] for how in WORLDS[world]}
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module", params=sorted(WORLDS))
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[Any]]:
    world, folder = request.param, tmp_path_factory.mktemp("world")
    together(train_all, folder, world)
    return world, [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


def test_several_processes_train_as_one(weights: tuple[int, list[Any]]) -> None:
    world, found = weights
    tolerances = {"exact": 1e-6, "fast": 2e-3, "coarse": 2e-2}
    for how in WORLDS[world]:
        for number, case in enumerate(cases(how)):
            alone = result("alone", 0, 1, case)[0]
            for name, parameter in alone.items():
                every = [each[how][number][name] for each in found]
                assert all(torch.equal(each, every[0]) for each in every), (how, case, name)
                error = float((every[0] - parameter).abs().max())
                assert error <= tolerances[case.get("precision", "exact")], (how, case, name, error)
