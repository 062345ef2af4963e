"""The cut-off: which directions are kept, which become zero, and which values are out of range."""

import math
from collections.abc import Callable

import pytest
import torch
from spectra import BY_VALUES, DTYPES, HALF, decades, from_spectrum, gaussian, rank, singular_values, svd_cut
from torch import Tensor

from egalitarian import Polar, equalize_, matrices, polar, polar_lowrank
from egalitarian.kernels import RTOL, natural
from egalitarian.transforms.matrix import Site


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_cut_off_is_that_of_the_dtype(dtype: torch.dtype) -> None:
    above, below = (torch.diag(torch.tensor([1.0, share * RTOL[dtype]], dtype=dtype)) for share in (1.2, 0.8))
    assert rank(polar(above)) == 2
    assert rank(polar(below)) == 1
    assert torch.equal(polar(below), polar(below, rtol=RTOL[dtype]))


def test_coarser_precisions_have_larger_cut_offs() -> None:
    assert RTOL[torch.float32] == 1e-6
    cuts = [RTOL[key] for key in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]
    assert cuts == sorted(set(cuts))
    assert 1e-13 <= RTOL[torch.float64] <= 1e-11
    assert RTOL["tf32"] >= RTOL[torch.float16]
    for dtype in DTYPES:
        assert RTOL[dtype] > torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(100, 160), (64, 64), (200, 30)])
@pytest.mark.parametrize("condition", [1, 8])
def test_rounding_to_a_dtype_adds_no_direction(dtype: torch.dtype, shape: tuple[int, int], condition: float) -> None:
    assert rank(polar(from_spectrum(*shape, decades(16, condition), dtype=dtype))) == 16


@pytest.mark.parametrize("method", BY_VALUES)
@pytest.mark.parametrize("rtol", [0.5, 0.1, 1e-3, 1e-5, 1e-6, 5e-7])
def test_directions_above_a_given_cut_off_are_one_and_those_below_zero(rtol: float, method: str) -> None:
    G = from_spectrum(8, 9, [3.0, 3.03 * rtol, 2.97 * rtol], dtype=torch.float64)
    values = singular_values(polar(G, method=method, rtol=rtol))
    assert values[:3].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-4)


@pytest.mark.parametrize("method", BY_VALUES)
@pytest.mark.parametrize("rtol", [0.5, 0.1, 1e-3])
def test_a_given_cut_off_keeps_the_same_directions_as_the_svd(rtol: float, method: str) -> None:
    G = from_spectrum(8, 9, [3.0, 2.0, 3.03 * rtol, 2.97 * rtol], dtype=torch.float64)
    torch.testing.assert_close(polar(G, method=method, rtol=rtol), svd_cut(G, rtol), rtol=0, atol=1e-7)


@pytest.mark.parametrize("rtol", [0.1, 1e-2, 1e-3, 1e-5, 1e-6, 5e-7])
@pytest.mark.parametrize("others", [0, 5, 150])
def test_the_cut_off_of_the_polynomial_is_accurate_to_a_factor_of_three(rtol: float, others: int) -> None:
    """However many directions are as strong as the first: the largest singular value is estimated."""
    spectrum = [3.0] * (others + 1) + [9.0 * rtol, 1.0 * rtol]
    values = singular_values(polar(from_spectrum(160, 170, spectrum, dtype=torch.float64), method="polynomial", rtol=rtol))
    assert values[: others + 1].tolist() == pytest.approx([1.0] * (others + 1), abs=1e-6)
    assert 0.99 < values[others + 1] <= 1 + 1e-6
    assert values[others + 2] < 0.01


@pytest.mark.parametrize("method", BY_VALUES)
def test_a_direction_exactly_at_the_cut_off_becomes_zero(method: str) -> None:
    G = torch.diag(torch.tensor([3.0, 3.0 / 1024]))
    assert torch.equal(polar(G, method=method, rtol=2.0**-10), torch.diag(torch.tensor([1.0, 0.0])))


def test_a_cut_off_of_zero_keeps_every_nonzero_direction() -> None:
    G = torch.diag(torch.tensor([1.0, 1e-18, 0.0]))
    assert torch.equal(polar(G, rtol=0.0), torch.diag(torch.tensor([1.0, 1.0, 0.0])))


def test_the_cut_off_is_relative_to_the_largest_singular_value_of_each_matrix() -> None:
    G = torch.diag_embed(torch.tensor([[1e10, 1e6], [1e-10, 1e-14]]))
    assert torch.equal(polar(G), torch.eye(2).expand(2, 2, 2))
    assert torch.equal(polar(G, rtol=1e-3), torch.diag(torch.tensor([1.0, 0.0])).expand(2, 2, 2))


@pytest.mark.parametrize("kernel", [polar_lowrank, natural])
def test_other_kernels_have_the_same_cut_off(kernel: Callable[..., Tensor]) -> None:
    options = {"rank": 3} if kernel is polar_lowrank else {}
    G = torch.diag(torch.tensor([1.0, 0.011, 0.009]))
    assert (torch.diag(kernel(G, rtol=0.01, **options)) > 0.9).tolist() == [True, True, False]
    assert (torch.diag(kernel(G, **options)) > 0.9).all()


def autocast_layer(dtype: torch.dtype, batch: int = 12, width: int = 64) -> torch.nn.Linear:
    """A layer with the gradient of one autocast step on fewer samples than it is wide."""
    layer = torch.nn.Linear(width, width, bias=False)
    with torch.no_grad():
        layer.weight.copy_(gaussian(width, width, seed=1) / math.sqrt(width))
    x, y = gaussian(batch, width, seed=2), gaussian(batch, width, seed=3)
    try:
        with torch.autocast("cpu", dtype):
            out = layer(x)
        (out.float() - y).square().mean().mul(100).backward()
    except RuntimeError as error:
        if dtype == torch.bfloat16:
            raise
        pytest.skip(f"no {dtype} autocast on this CPU: {error}")
    assert out.dtype == dtype
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    return layer


@pytest.mark.parametrize("dtype", HALF)
def test_autocast_gradient_has_its_true_rank_only_with_the_cut_off_of_its_precision(dtype: torch.dtype) -> None:
    G = autocast_layer(dtype).weight.grad
    assert rank(polar(G, rtol=RTOL[dtype])) == 12
    assert rank(polar(G, rtol=RTOL[torch.float32])) > 12


@pytest.mark.parametrize("dtype", HALF)
def test_the_cut_off_of_the_transform_follows_compute(dtype: torch.dtype) -> None:
    G = autocast_layer(dtype).weight.grad
    site = Site("weight", 0, torch.float32)
    assert torch.equal(Polar(compute=dtype)(G, site), polar(G, rtol=RTOL[dtype]))
    assert rank(Polar(compute=dtype)(G, site)) == 12
    assert rank(Polar()(G, site)) > 12
    assert rank(Polar()(G, site._replace(compute=dtype))) == 12


@pytest.mark.parametrize("dtype", HALF)
def test_equalize_takes_the_cut_off_of_the_transform(dtype: torch.dtype) -> None:
    given, default = autocast_layer(dtype), autocast_layer(dtype)
    equalize_(matrices(given), Polar(compute=dtype))
    equalize_(matrices(default), Polar())
    assert rank(given.weight.grad) == 12
    assert rank(default.weight.grad) > 12


@pytest.mark.parametrize("floor", [-1e-6, -3.0, math.nan, math.inf])
def test_polar_refuses_a_floor_out_of_range(floor: float) -> None:
    with pytest.raises(ValueError, match=f"floor .* got {floor}"):
        polar(torch.eye(2), floor=floor)


@pytest.mark.parametrize("rtol", [-1e-3, 1.0, 2.5, math.nan, math.inf])
@pytest.mark.parametrize("kernel", [polar, lambda G, rtol: polar_lowrank(G, 1, rtol=rtol), natural])
def test_a_cut_off_out_of_range_is_refused(kernel: Callable[..., Tensor], rtol: float) -> None:
    with pytest.raises(ValueError, match=f"rtol .* got {rtol}"):
        kernel(torch.eye(2), rtol=rtol)


def test_options_are_checked_even_for_an_empty_matrix() -> None:
    empty = torch.ones(0, 3)
    with pytest.raises(ValueError, match="got -1"):
        polar(empty, floor=-1)
    with pytest.raises(ValueError, match="got 7"):
        polar_lowrank(empty, 7)
    with pytest.raises(ValueError, match="'newton'"):
        polar(empty, method="newton")
