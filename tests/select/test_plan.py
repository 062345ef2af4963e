"""A plan: it lists every parameter, reads and writes matrices as views, and makes param groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from toy import EveryLayer, network

import egalitarian as eg


def test_every_parameter_is_taken_or_left_and_printed_with_its_reason() -> None:
    model = EveryLayer()
    plan = eg.matrices(model)
    names = [name for name, _ in model.named_parameters()]
    assert sorted(entry.name for entry in plan) == sorted(names)
    assert len(plan.taken) + len(plan.left) == len(plan) == len(names)
    lines = str(plan).splitlines()
    for entry in plan:
        line = next(line for line in lines if line.startswith(entry.name + " "))
        assert ("taken as" in line) == entry.taken
        assert entry.taken or (entry.reason and entry.reason in line)


def test_write_is_the_inverse_of_fold() -> None:
    model = EveryLayer()
    for entry in eg.matrices(model, split={"hidden.weight": (4, 5)}).taken:
        out = torch.full_like(entry.parameter, torch.nan)
        for target in entry.targets:
            folded = target.fold(entry.parameter.detach())
            assert folded.shape == (target.rows, target.columns)
            target.write(folded, into=out)
        assert torch.equal(out, entry.parameter)


def test_the_plan_of_an_attachment_describes_the_transform() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eg.attach(optimizer, model, eg.LowRankPolar(6, cap=True)) as egd:
        text = str(egd.plan)
        assert "rank 6" in text
        assert "rank 5, capped from 6" in text
    with eg.attach(optimizer, model, eg.Polar(compute=torch.bfloat16)) as egd:
        assert "cut-off 0.005, gradients computed in bfloat16" in str(egd.plan)
    with eg.attach(optimizer, model) as egd:
        assert "1e-06 for float32" in str(egd.plan)


def test_groups_have_separate_settings_for_taken_and_left_parameters() -> None:
    model = network()
    plan = eg.matrices(model)
    optimizer = torch.optim.SGD(plan.groups(taken={"weight_decay": 0.03}, left={"weight_decay": 1e-4, "lr": 0.5}), lr=3.0)
    first, second = optimizer.param_groups
    assert first["param_names"] == ["0.weight", "2.weight"]
    assert (first["weight_decay"], first["lr"], second["weight_decay"], second["lr"]) == (0.03, 3.0, 1e-4, 0.5)
    assert len(first["params"]) + len(second["params"]) == len(list(model.parameters()))
    eg.attach(optimizer, plan)


def test_a_summary_counts_vectors_and_repeated_layers() -> None:
    blocks = nn.ModuleDict({"blocks": nn.ModuleList([network(), network(1)]), "head": nn.Linear(3, 2)})
    assert eg.matrices(blocks).summary().splitlines() == [
        "blocks.*.*.weight  (8, 6)  2 times  taken as 8 x 6",
        "7 vectors                           left: 1-D",
        "blocks.*.*.weight  (5, 8)  2 times  taken as 5 x 8",
        "blocks.*.*.weight  (3, 5)  2 times  taken as 3 x 5",
        "head.weight        (2, 3)           left: output head",
        "6 of 14 parameters taken, 83.7 % of the entries",
    ]


@pytest.mark.parametrize("text", [str, eg.Plan.summary])
def test_a_plan_says_when_less_than_half_is_taken(text: Callable[[eg.Plan], str]) -> None:
    model = nn.Sequential(nn.Embedding(40, 6), nn.Linear(6, 8), nn.Linear(8, 3))
    assert text(eg.matrices(model)).endswith("1 of 5 parameters taken, 14.9 % of the entries, less than half")
    assert text(eg.matrices(model, head=None, include="*.weight")).endswith(
        "3 of 5 parameters taken, 96.6 % of the entries"
    )


def test_a_plan_without_parameters_is_printed() -> None:
    assert str(eg.Plan(())) == eg.Plan(()).summary() == "0 of 0 parameters taken, no entries"
