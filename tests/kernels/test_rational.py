"""The rational route: its coefficients, its promise, and the matrices that it refuses."""

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spectra import decades, distance, from_spectrum, gaussian, law, seeds, singular_values
from torch import Tensor
from torch.func import vmap

from egalitarian import Polar, explain, polar
from egalitarian.kernels.coefficients import LastStep, best_last_step
from egalitarian.kernels.gram import gram, upper_gram
from egalitarian.kernels.rational import OFF, rational_factor, steps_down_to
from egalitarian.kernels.route import FAST_CUT, decide

CPU = torch.device("cpu")


def last(step: LastStep, x: Tensor) -> Tensor:
    powers = sum(value * x ** (2 * place) for place, value in enumerate(step.powers))
    return x * (powers + step.q / (1 + step.d * x**2))


@pytest.mark.parametrize("powers", [2, 3])
@pytest.mark.parametrize("lower", [0.1, 0.158, 0.25, 0.4])
def test_the_best_last_step_errs_alike_at_one_point_more_than_it_has_numbers(lower: float, powers: int) -> None:
    step = best_last_step(lower, powers)
    x = torch.logspace(math.log10(lower), 0, 20_001, dtype=torch.float64)
    off = 1 - last(step, x)
    assert off.abs().max().item() == pytest.approx(step.error, rel=1e-3)
    signs = off[off.abs() > 0.99 * step.error].sign()
    assert int((signs.diff() != 0).sum()) == powers + 2  # alternations; the numbers are the powers, q and d


@pytest.mark.parametrize("powers", [2, 3])
def test_no_number_of_the_last_step_can_be_moved_for_the_better(powers: int) -> None:
    step = best_last_step(0.2, powers)
    x = torch.logspace(math.log10(0.2), 0, 20_001, dtype=torch.float64)
    least = (1 - last(step, x)).abs().max().item()
    for by in (1.003, 0.997):
        others = [step._replace(q=step.q * by), step._replace(d=step.d * by)]
        for place, value in enumerate(step.powers):
            moved = (*step.powers[:place], value * by, *step.powers[place + 1 :])
            others.append(step._replace(powers=moved))
        for other in others:
            assert (1 - last(other, x)).abs().max().item() > least - 1e-6


@law
@given(power=st.floats(-3.8, -3))
def test_both_steps_take_an_interval_to_one(power: float) -> None:
    lower = 10**power
    steps = steps_down_to(lower)
    assert steps is not None
    x = torch.logspace(power, 0, 4000, dtype=torch.float64)
    x = x * (steps.a + steps.b / (1 + steps.c * x**2))
    x = x * (steps.p + steps.q / (1 + steps.d * x**2) + steps.r * x**2 + steps.s * x**4)
    assert (1 - x).abs().max() <= OFF * 1.001


def test_steps_that_are_not_enough_are_none() -> None:
    assert steps_down_to(1e-4) is None


@pytest.mark.parametrize("lower", [0.9, 0.97, 0.995])
def test_the_exchange_ends_where_there_is_next_to_nothing_left_to_do(lower: float) -> None:
    assert best_last_step(lower, 3).error < 1e-6


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 3), (7, 7), (9, 700), (194, 512)])
def test_gram_is_the_product(shape: tuple[int, int]) -> None:
    A = gaussian(*shape)
    exact = A.double() @ A.mT.double()
    torch.testing.assert_close(gram(A).double(), exact, rtol=0, atol=2e-6 * shape[1])
    torch.testing.assert_close(upper_gram(A, torch.float64).triu(), exact.triu(), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gram(A.mT.contiguous().mT), gram(A), rtol=0, atol=2e-6 * shape[1])


def off_in_the_mean(G: Tensor, P: Tensor) -> float:
    """The root mean square error of the directions above 1e-3 of the largest, the worse of left and right ones."""
    U, S, Vh = torch.linalg.svd(G.double(), full_matrices=False)
    strong = 1e-3 * S[0] < S
    off = U.mT @ P.double() @ Vh.mT - torch.eye(len(S))
    return max(torch.linalg.matrix_norm(off[strong]).item(), torch.linalg.matrix_norm(off[:, strong]).item()) / math.sqrt(
        int(strong.sum())
    )


SPECTRA: dict[str, Callable[[int, float], Tensor]] = {
    "decades": decades,
    "half and half": lambda count, condition: torch.cat(
        [torch.ones(count // 2), torch.full((count - count // 2,), 1 / condition)]
    ),
    "one strong": lambda count, condition: torch.cat([torch.ones(1), torch.full((count - 1,), 1 / condition)]),
    "one weak": lambda count, condition: torch.cat([torch.ones(count - 1), torch.full((1,), 1 / condition)]),
    "even": lambda count, condition: torch.linspace(1, 1 / condition, count),
}


@law
@given(
    kind=st.sampled_from(list(SPECTRA)),
    short=st.integers(1, 60),
    more=st.sampled_from([0, 1, 17, 200]),
    missing=st.sampled_from([0, 0, 1, 20]),
    condition=st.floats(0, 5),
    scale=st.floats(-6, 6),
    tall=st.booleans(),
    seed=seeds,
)
def test_it_is_right_to_a_hundredth_or_refuses(
    kind: str, short: int, more: int, missing: int, condition: float, scale: float, tall: bool, seed: int
) -> None:
    count = max(short - missing, 1)
    G = 10**scale * from_spectrum(short, short + more, SPECTRA[kind](count, 10**condition)[:count], seed=seed)
    G = G.mT if tall else G
    P = rational_factor(G)
    if P is not None:
        assert off_in_the_mean(G, P) <= 1e-2
        assert singular_values(P).max() < 1.03
    fast = polar(G, method="rational", precision="fast")
    assert off_in_the_mean(G, fast) <= 1e-2


@pytest.mark.parametrize("condition", [1.0, 10.0, 100.0, 300.0, 1e3])
@pytest.mark.parametrize("shape", [(194, 512), (512, 194), (64, 64), (400, 600)])
def test_it_takes_gradients_as_they_are(shape: tuple[int, int], condition: float) -> None:
    G = from_spectrum(*shape, decades(min(shape), condition))
    P = rational_factor(G)
    assert P is not None
    assert off_in_the_mean(G, P) <= 1e-2
    assert torch.equal(polar(G, precision="fast"), P)
    assert P.is_contiguous()


@pytest.mark.parametrize("rank", [1, 10, 100])
def test_directions_that_are_not_there_stay_away(rank: int) -> None:
    P = rational_factor(from_spectrum(194, 512, decades(rank, 50)))
    assert P is not None
    assert (singular_values(P)[rank:] < 1e-2).all()


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_strong_rows_that_are_nearly_alike_do_not_hide_their_noise(pairs: int) -> None:
    """What K forgets is not spread evenly then."""
    for seed in range(60):
        G = 10 ** -(0.5 + 1.5 * seed / 60) * gaussian(64, 128, seed=seed)
        for place in range(pairs):
            G[2 * place] = gaussian(1, 128, seed=1000 + seed + place)
            G[2 * place + 1] = G[2 * place] + 10 ** -(1.5 + seed % 10 / 6) * gaussian(1, 128, seed=2000 + seed + place)
        P = rational_factor(G)
        assert P is None or (off_in_the_mean(G, P) <= 1e-2 and singular_values(P)[0] < 1.06)


def test_a_trace_is_of_the_exact_factor() -> None:
    G, H = gaussian(70, 90), from_spectrum(70, 90, decades(70, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda matrix: polar(matrix, precision="fast"), G, check_trace=False)
    assert distance(traced(H), polar(H)) < 1e-4


REFUSED = {
    "many weak ones": from_spectrum(100, 150, [1.0] * 50 + [1.1e-3] * 50),
    "decades beyond float32": from_spectrum(100, 150, decades(100, 1e6)),
    "zero": torch.zeros(70, 80),
    "nan": torch.full((70, 80), math.nan),
    "inf": gaussian(70, 80).index_fill(0, torch.tensor(3), math.inf),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_is_not_for_goes_by_eigenvectors(name: str) -> None:
    G = REFUSED[name]
    assert rational_factor(G) is None
    torch.testing.assert_close(
        polar(G, precision="fast"), polar(G, method="eigh", precision="fast"), rtol=0, atol=0, equal_nan=True
    )


def test_every_matrix_of_a_batch_is_its_own() -> None:
    refused = [matrix for matrix in REFUSED.values() if matrix.shape == (70, 80)]
    G = torch.stack([gaussian(70, 80), *refused, 1e30 * gaussian(70, 80), 1e-30 * gaussian(70, 80)])
    P = polar(G, precision="fast")
    for matrix, factor in zip(G, P, strict=True):
        torch.testing.assert_close(factor, polar(matrix, precision="fast"), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(polar(G.reshape(2, 3, 70, 80), precision="fast").reshape(G.shape).nan_to_num(), P.nan_to_num())


@pytest.mark.parametrize("shape", [(0, 70, 90), (2, 0, 70, 90), (0, 90), (70, 0)])
@pytest.mark.parametrize("method", ["auto", "rational"])
def test_empty_stays_empty(method: str, shape: tuple[int, ...]) -> None:
    assert polar(torch.ones(shape), method=method, precision="fast").shape == shape


@pytest.mark.parametrize("power", [-110, -20, -3, 1, 15, 120])
def test_a_power_of_two_changes_no_bit(power: int) -> None:
    G = from_spectrum(70, 90, decades(70, 300))
    assert torch.equal(polar(2.0**power * G, precision="fast"), polar(G, precision="fast"))


def test_float64_and_views_go_the_same_way() -> None:
    G = from_spectrum(90, 70, decades(70, 300))
    expected = polar(G, precision="fast")
    torch.testing.assert_close(polar(G.double(), precision="fast").float(), expected, rtol=0, atol=1e-5)
    assert polar(G.double(), precision="fast").dtype == torch.float64
    torch.testing.assert_close(polar(G.mT, precision="fast").mT, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(polar(G.repeat(1, 2)[:, ::2][:, :70], precision="fast").shape, G.shape)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")
def test_where_no_value_may_be_looked_at_it_is_exact() -> None:
    G = torch.stack([from_spectrum(70, 90, decades(70, 100), seed=seed) for seed in range(2)])
    exact = polar(G)
    assert distance(vmap(lambda matrix: polar(matrix, precision="fast"))(G), exact) < 1e-4
    compiled = torch.compile(lambda matrix: polar(matrix, precision="fast"), backend="eager", fullgraph=True)
    assert distance(compiled(G), exact) < 1e-4


def test_the_rule_on_a_cpu() -> None:
    def choose(short: int, rtol: float = 1e-6) -> str:
        return decide((short, short), torch.float32, CPU, "auto", "fast", rtol, readable=True, float32=True).algorithm

    assert (choose(63), choose(64), choose(4000)) == ("eigh", "rational", "rational")
    assert (choose(100, FAST_CUT), choose(100, 1e-3)) == ("rational", "eigh")
    told = explain(torch.zeros(70, 90), precision="fast")
    assert told.startswith("rational: Gram matrix 70 x 70 in float32, two inverses; no cut-off; eigenvectors if there")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "precision must be .fast. for method .rational., got .exact.; use method=.eigh. or .polynomial."),
        ({"precision": "fast", "rtol": 1e-2}, "rtol must be <= 0.0005 for method .rational., got 0.01"),
        ({"precision": "fast", "floor": 1e-6}, "floor must be None for method .polynomial. or precision .fast."),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        polar(torch.eye(60), method="rational", **options)
    with pytest.raises(ValueError, match=told):
        Polar(method="rational", **options)
