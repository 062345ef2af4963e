"""Where directions end and noise begins; who computes; what is refused."""

import math
from collections.abc import Callable

import pytest
import torch
from spectra import BY_VALUES, DTYPES, HALF, decades, from_spectrum, gaussian, rank, singular_values, svd_cut
from torch import Tensor

from egalitarian import Polar, equalize_, matrices, normalize, polar, polar_lowrank, spectrum
from egalitarian.kernels import RTOL, decide, natural
from egalitarian.transforms.matrix import Site

Kernel = Callable[[Tensor], Tensor]


def lowrank(G: Tensor) -> Tensor:
    return polar_lowrank(G, 2)


def by_svd(G: Tensor) -> Tensor:
    return polar(G, method="svd")


CONTAINED = {"polar": polar, "by svd": by_svd, "polar_lowrank": lowrank, "natural": natural}
ALL = CONTAINED | {"normalize": normalize, "spectrum": lambda G: spectrum(G).values}


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_cut_is_that_of_the_dtype(dtype: torch.dtype) -> None:
    above, below = (torch.diag(torch.tensor([1.0, share * RTOL[dtype]], dtype=dtype)) for share in (1.2, 0.8))
    assert rank(polar(above)) == 2
    assert rank(polar(below)) == 1
    assert torch.equal(polar(below), polar(below, rtol=RTOL[dtype]))


def test_coarser_precisions_cut_more() -> None:
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
def test_given_cut_keeps_what_is_above_and_zeroes_what_is_below(rtol: float, method: str) -> None:
    G = from_spectrum(8, 9, [3.0, 3.03 * rtol, 2.97 * rtol], dtype=torch.float64)
    values = singular_values(polar(G, method=method, rtol=rtol))
    assert values[:3].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-4)


@pytest.mark.parametrize("method", BY_VALUES)
@pytest.mark.parametrize("rtol", [0.5, 0.1, 1e-3])
def test_what_a_given_cut_keeps_is_what_the_svd_keeps(rtol: float, method: str) -> None:
    G = from_spectrum(8, 9, [3.0, 2.0, 3.03 * rtol, 2.97 * rtol], dtype=torch.float64)
    torch.testing.assert_close(polar(G, method=method, rtol=rtol), svd_cut(G, rtol), rtol=0, atol=1e-7)


@pytest.mark.parametrize("rtol", [0.1, 1e-2, 1e-3, 1e-5, 1e-6, 5e-7])
@pytest.mark.parametrize("others", [0, 5, 150])
def test_the_cut_of_products_is_right_to_a_factor_of_three(rtol: float, others: int) -> None:
    """However many directions are as strong as the first: its size is estimated."""
    spectrum = [3.0] * (others + 1) + [9.0 * rtol, 1.0 * rtol]
    values = singular_values(polar(from_spectrum(160, 170, spectrum, dtype=torch.float64), method="polynomial", rtol=rtol))
    assert values[: others + 1].tolist() == pytest.approx([1.0] * (others + 1), abs=1e-6)
    assert 0.99 < values[others + 1] <= 1 + 1e-6
    assert values[others + 2] < 0.01


@pytest.mark.parametrize("method", BY_VALUES)
def test_a_direction_exactly_at_the_cut_is_not_above_it(method: str) -> None:
    G = torch.diag(torch.tensor([3.0, 3.0 / 1024]))
    assert torch.equal(polar(G, method=method, rtol=2.0**-10), torch.diag(torch.tensor([1.0, 0.0])))


def test_no_cut_keeps_every_direction_but_zero() -> None:
    G = torch.diag(torch.tensor([1.0, 1e-18, 0.0]))
    assert torch.equal(polar(G, rtol=0.0), torch.diag(torch.tensor([1.0, 1.0, 0.0])))


def test_each_matrix_of_a_batch_is_cut_by_its_own_largest() -> None:
    G = torch.diag_embed(torch.tensor([[1e10, 1e6], [1e-10, 1e-14]]))
    assert torch.equal(polar(G), torch.eye(2).expand(2, 2, 2))
    assert torch.equal(polar(G, rtol=1e-3), torch.diag(torch.tensor([1.0, 0.0])).expand(2, 2, 2))


@pytest.mark.parametrize("kernel", [polar_lowrank, natural])
def test_other_kernels_cut_alike(kernel: Callable[..., Tensor]) -> None:
    options = {"rank": 3} if kernel is polar_lowrank else {}
    G = torch.diag(torch.tensor([1.0, 0.011, 0.009]))
    assert (torch.diag(kernel(G, rtol=0.01, **options)) > 0.9).tolist() == [True, True, False]
    assert (torch.diag(kernel(G, **options)) > 0.9).all()


def test_auto_goes_to_the_svd_below_the_reach_of_eigh() -> None:
    G = torch.diag(torch.tensor([1.0, 0.5, 1e-8]))
    P = polar(G, rtol=1e-9)
    assert torch.equal(P, polar(G, method="svd", rtol=1e-9))
    assert torch.equal(P, torch.eye(3))
    assert rank(polar(G)) == 2


@pytest.mark.parametrize(
    ("dtype", "rtol", "chosen"),
    [
        (torch.float64, 1e-12, "svd"),
        (torch.float64, 1e-3, "svd"),
        (torch.float32, 1e-6, "eigh"),
        (torch.float32, 5e-7, "eigh"),
        (torch.float32, 4e-7, "svd"),
        (torch.float16, 1e-3, "eigh"),
        (torch.bfloat16, 5e-3, "eigh"),
    ],
)
def test_auto_follows_the_documented_rule(dtype: torch.dtype, rtol: float, chosen: str) -> None:
    assert decide((20, 30), dtype, None, "auto", "exact", rtol).algorithm == chosen
    G = from_spectrum(20, 30, decades(20, 100), dtype=dtype)
    if rtol >= 5e-7 or chosen == "svd":
        assert torch.equal(polar(G, rtol=rtol), polar(G, rtol=rtol, method=chosen))


def test_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="'newton'"):
        polar(torch.eye(2), method="newton")


@pytest.mark.parametrize("rtol", [0.0, 1e-8, 4.9e-7])
def test_eigh_refuses_a_cut_it_cannot_resolve(rtol: float) -> None:
    with pytest.raises(ValueError, match=f"got {rtol:g}"):
        polar(torch.eye(2), method="eigh", rtol=rtol)


def test_eigh_refuses_the_cut_of_float64() -> None:
    with pytest.raises(ValueError, match="1e-12"):
        polar(torch.eye(2, dtype=torch.float64), method="eigh")


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
def test_autocast_gradient_has_its_true_rank_only_with_the_cut_of_its_precision(dtype: torch.dtype) -> None:
    G = autocast_layer(dtype).weight.grad
    assert rank(polar(G, rtol=RTOL[dtype])) == 12
    assert rank(polar(G, rtol=RTOL[torch.float32])) > 12


@pytest.mark.parametrize("dtype", HALF)
def test_polar_transform_cuts_by_the_precision_it_is_told(dtype: torch.dtype) -> None:
    G = autocast_layer(dtype).weight.grad
    site = Site("weight", 0, torch.float32)
    assert torch.equal(Polar(compute=dtype)(G, site), polar(G, rtol=RTOL[dtype]))
    assert rank(Polar(compute=dtype)(G, site)) == 12
    assert rank(Polar()(G, site)) > 12
    assert rank(Polar()(G, site._replace(compute=dtype))) == 12


@pytest.mark.parametrize("dtype", HALF)
def test_equalize_takes_the_precision_from_polar(dtype: torch.dtype) -> None:
    told, untold = autocast_layer(dtype), autocast_layer(dtype)
    equalize_(matrices(told), Polar(compute=dtype))
    equalize_(matrices(untold), Polar())
    assert rank(told.weight.grad) == 12
    assert rank(untold.weight.grad) > 12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CONTAINED)
@pytest.mark.parametrize("transposed", [False, True])
def test_one_bad_entry_makes_its_matrix_nan_and_no_other(
    transposed: bool, name: str, value: float, dtype: torch.dtype
) -> None:
    kernel, others = CONTAINED[name], [0, 2, 3, 4]
    G = gaussian(5, 9, 7, dtype=dtype).mT if transposed else gaussian(5, 7, 9, dtype=dtype)
    G[3] = from_spectrum(7, 9, decades(7, 1e5), dtype=dtype)
    clean = kernel(G)[others]
    for finite in (0.0, 1e4):
        G[1] = finite
        assert torch.equal(kernel(G)[others], clean)
    G[1, 2, 3] = value
    P = kernel(G)
    assert P.shape == G.shape
    assert P[1].isnan().all()
    assert torch.equal(P[others], clean)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CONTAINED)
def test_one_bad_entry_anywhere_makes_a_matrix_nan(name: str, value: float) -> None:
    for place in range(15):
        G = gaussian(3, 5)
        G.view(-1)[place] = value
        assert CONTAINED[name](G).isnan().all()
        assert CONTAINED[name](G.mT).isnan().all()


@pytest.mark.parametrize("name", CONTAINED)
def test_all_bad_is_all_nan(name: str) -> None:
    assert CONTAINED[name](torch.full((2, 3, 4), math.inf)).isnan().all()
    assert CONTAINED[name](torch.tensor([[math.inf, -math.inf], [math.nan, 0.0]])).isnan().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(), (5,)])
def test_fewer_than_two_dimensions_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"got shape \({'5,' if shape else ''}\)"):
        ALL[name](torch.ones(shape))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.complex128, torch.uint8])
def test_other_dtypes_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=str(dtype)):
        ALL[name](torch.ones(3, 4, dtype=dtype))


@pytest.mark.parametrize("name", ALL)
def test_sparse_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="sparse_coo"):
        ALL[name](torch.eye(3).to_sparse())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("thing", [[[1.0, 2.0]], "G", None, 3.0])
def test_what_is_no_tensor_is_refused(name: str, thing: object) -> None:
    with pytest.raises(TypeError, match=type(thing).__name__):
        ALL[name](thing)  # type: ignore[arg-type]


@pytest.mark.parametrize("floor", [-1e-6, -3.0, math.nan, math.inf])
def test_polar_refuses_a_floor_out_of_range(floor: float) -> None:
    with pytest.raises(ValueError, match=f"floor .* got {floor}"):
        polar(torch.eye(2), floor=floor)


@pytest.mark.parametrize("rtol", [-1e-3, 1.0, 2.5, math.nan, math.inf])
@pytest.mark.parametrize("kernel", [polar, lambda G, rtol: polar_lowrank(G, 1, rtol=rtol), natural])
def test_a_cut_out_of_range_is_refused(kernel: Callable[..., Tensor], rtol: float) -> None:
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
