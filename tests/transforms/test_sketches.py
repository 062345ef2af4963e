"""Sketches: one seed determines them for every matrix and step, and a captured graph reads them from fixed memory."""

from __future__ import annotations

import torch
from torch import Tensor

import egalitarian as eg
from egalitarian.kernels import gaussian
from egalitarian.transforms import Site
from egalitarian.transforms.sketches import Sketches, SketchKey, sketch_seed

CPU = torch.device("cpu")


def test_sketches_depend_on_seed_name_and_step_and_nothing_else() -> None:
    assert len({sketch_seed(seed, name, step) for seed in (0, 1) for name in "ab" for step in (None, 0, 1)}) == 12
    same = [torch.diag(torch.linspace(1, 0.9, 6)) + 0.01 * torch.randn(6, 6)] * 3

    def seen(transform: eg.LowRankPolar, name: str = "w") -> list[Tensor]:
        return [transform(grad, Site(name, step, torch.float32)) for step, grad in enumerate(same)]

    fresh, fixed = seen(eg.LowRankPolar(2)), seen(eg.LowRankPolar(2, fixed=True))
    assert not torch.equal(fresh[0], fresh[1])
    assert torch.equal(fixed[0], fixed[1])
    assert not torch.equal(fresh[0], seen(eg.LowRankPolar(2), "v")[0])
    assert not torch.equal(fresh[0], seen(eg.LowRankPolar(2, seed=1))[0])
    torch.manual_seed(99)
    assert torch.equal(fresh[2], seen(eg.LowRankPolar(2))[2])


def test_drawn_sketches_are_those_of_their_step_in_fixed_memory() -> None:
    sketches = Sketches()
    changing, fixed = (SketchKey(3, "layer", fixed, 6, 2) for fixed in (False, True))
    buffers = {key: sketches._buffer(key, CPU) for key in (changing, fixed)}
    for step in (0, 7, 2):
        sketches.draw(step)
        assert torch.equal(buffers[changing], gaussian(6, 2, sketch_seed(3, "layer", step), CPU))
        assert torch.equal(buffers[fixed], gaussian(6, 2, sketch_seed(3, "layer", None), CPU))
        assert sketches._buffer(changing, CPU) is buffers[changing]
