"""Matrices that several processes hold: equal to one process, whoever computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jobs import WORLDS, cases, result

TOLERANCES = {"exact": 1e-6, "fast": 2e-3, "coarse": 2e-2}


@pytest.mark.parametrize(("world", "how"), [(world, how) for world, names in WORLDS.items() for how in names])
def test_several_processes_train_as_one(found: Any, world: int, how: str) -> None:
    ranks = [each["equality"][how] for each in found[world]]
    for number, case in enumerate(cases(how)):
        alone = result("alone", 0, 1, case)[0]
        for name, parameter in alone.items():
            every = [each[number][name] for each in ranks]
            assert all(torch.equal(each, every[0]) for each in every), (case, name)
            error = float((every[0] - parameter).abs().max())
            assert error <= TOLERANCES[case.get("precision", "exact")], (case, name, error)
