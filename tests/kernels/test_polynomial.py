"""The polynomial route: with quintics and with Cholesky steps, exact and fast."""

import math

import pytest
import torch
from spectra import BY_VALUES, decades, distance, from_spectrum, gaussian, singular_values, svd_cut

from egalitarian import polar


@pytest.mark.usefixtures("cholesky_for_all_sizes")
@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (3, 12, 9)])
def test_cholesky_steps_give_the_same_factor(shape: tuple[int, ...]) -> None:
    short = min(shape[-2:])
    G = from_spectrum(*shape[-2:], decades(short, 1e3)).expand(shape) * torch.ones(shape)
    assert distance(polar(G, method="polynomial"), polar(G, method="svd")) < 1e-6
    assert distance(polar(G, method="polynomial", precision="fast"), polar(G, method="svd")) < 1e-3 * short**0.5


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_a_nan_stays_in_its_matrix(precision: str) -> None:
    G = gaussian(4, 6, 9)
    expected = polar(G, method="polynomial", precision=precision)
    G[1, 2, 3], G[2, 0, 0] = math.nan, math.inf
    P = polar(G, method="polynomial", precision=precision)
    assert P[1:3].isnan().all()
    assert torch.equal(P[[0, 3]], expected[[0, 3]])


def test_zero_stays_zero_and_scale_does_not_matter() -> None:
    for precision in ("exact", "fast"):
        assert not polar(torch.zeros(2, 5, 7), method="polynomial", precision=precision).any()
    G = gaussian(5, 7)
    for scale in (1e-30, 1e30, 1e-38):
        torch.testing.assert_close(polar(G * scale, method="polynomial"), polar(G, method="polynomial"), rtol=0, atol=1e-5)


def test_the_factor_equals_that_of_the_svd() -> None:
    """With a gap at the cut-off, the factor is that of the SVD."""
    assert "polynomial" not in BY_VALUES
    G = from_spectrum(30, 40, 80 * decades(12, 50))
    assert distance(polar(G, method="polynomial"), svd_cut(G, 1e-6)) < 1e-6


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("scale", [1e37, 1e-20, 1e-42])
def test_singular_values_are_one_at_extreme_scales(scale: float, precision: str) -> None:
    values = singular_values(polar(gaussian(60, 60) * scale, method="polynomial", precision=precision))
    assert values.max() < 1.01
    assert values[: 55 if scale > 1e-40 else 40].min() > 0.99  # subnormal numbers have few digits


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
def test_a_compiled_call_takes_several_shapes() -> None:
    compiled = torch.compile(lambda matrix: polar(matrix, method="polynomial"), backend="eager", fullgraph=True)
    for shape in ((12, 20), (13, 20), (3, 12, 20), (13, 25)):
        G = gaussian(*shape)
        torch.testing.assert_close(compiled(G), polar(G, method="polynomial"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["decades", "flat", "one strong, others 2e-3", "one strong, others 3e-2"])
@pytest.mark.parametrize("shape", [(20, 30), (50, 100)])
@pytest.mark.parametrize("rank", [1, 3, 10, 19])
def test_fast_has_an_error_of_at_most_a_hundredth_on_gradients_of_low_rank(
    rank: int, shape: tuple[int, int], kind: str
) -> None:
    """Rounding errors outside the true directions must not grow either."""
    rest = {"decades": torch.logspace(0, -2.9, rank)[1:], "flat": torch.ones(rank - 1)}
    values = torch.cat([torch.ones(1), rest.get(kind, torch.full((rank - 1,), 2e-3 if "2e-3" in kind else 3e-2))])
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        U, V = (torch.linalg.qr(torch.randn(side, rank, generator=draw, dtype=torch.float64)).Q for side in shape)
        G = ((U * values) @ V.mT).float()
        assert torch.linalg.matrix_norm(polar(G, method="polynomial", precision="fast").double() - U @ V.mT, 2) < 1e-2


@pytest.mark.parametrize("rtol", [1e-3, 5e-3])
def test_fast_does_not_amplify_directions_below_the_cut_off(rtol: float) -> None:
    G = from_spectrum(64, 64, torch.cat([torch.ones(10), torch.full((54,), rtol / 4)]))
    assert singular_values(polar(G, method="polynomial", precision="fast", rtol=rtol))[10:].max() < 1e-2
