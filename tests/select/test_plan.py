"""A plan: it lists every parameter, reads and writes matrices as views, and makes param groups."""

from __future__ import annotations

import torch
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
