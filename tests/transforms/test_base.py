"""Chains of transforms: their order, their memories, and the text by which a saved state knows them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy import gradients, transform_each

import egalitarian as eg
from egalitarian.transforms import is_of_chain


def test_the_order_of_a_sequence_matters() -> None:
    before = transform_each([eg.Momentum(), eg.Polar()], gradients(3))
    after = transform_each([eg.Polar(), eg.Momentum()], gradients(3))
    torch.testing.assert_close(torch.linalg.svdvals(before[-1]), torch.ones(2))
    assert torch.linalg.svdvals(after[-1]).max() < 0.5


def test_two_transforms_of_a_kind_have_separate_memories() -> None:
    chained = transform_each([eg.GrokfastEMA(0.9), eg.GrokfastEMA(0.5)], gradients(4))
    first = transform_each(eg.GrokfastEMA(0.9), gradients(4))
    torch.testing.assert_close(chained, transform_each(eg.GrokfastEMA(0.5), first))


@pytest.mark.parametrize(("old", "new"), [("products", "polynomial"), ("inverses", "rational")])
def test_a_saved_chain_is_recognised_under_the_old_name_of_its_method(old: str, new: Any) -> None:
    chain = (eg.Momentum(), eg.Polar(method=new, precision="fast"))
    saved = repr(chain).replace(new, old)
    assert old in saved
    assert is_of_chain(saved, chain)
    assert is_of_chain(repr(chain), chain)
    assert not is_of_chain(saved, (eg.Momentum(), eg.Polar(precision="fast")))
    assert not is_of_chain(None, chain)
