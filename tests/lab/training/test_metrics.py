"""Measures: against slow twins and known answers; the sketch within its stated error."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import law, parameters, small, together
from torch import Tensor, nn

import egalitarian as eg
from egalitarian.lab.config import CUT, SKETCH, decode, encode, is_snapshot
from egalitarian.lab.problems import stream
from egalitarian.lab.training import metrics as measure
from egalitarian.lab.training.loop import train
from egalitarian.lab.training.metrics import (
    LOSSES,
    Sketch,
    evaluate,
    is_correct,
    norms,
    singular_values,
    spectral_measures,
)


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "test"), dtype=dtype)


def matrix_with(values: list[float], rows: int, columns: int) -> Tensor:
    """(1, rows, columns) with these singular values."""
    U, V = torch.linalg.qr(gaussian(rows, rows)).Q, torch.linalg.qr(gaussian(columns, columns, seed=1)).Q
    S = torch.zeros(rows, columns, dtype=torch.float64)
    S.diagonal().copy_(torch.tensor(values, dtype=torch.float64))
    return (U @ S @ V)[None]


# losses and accuracy


def test_losses_are_each_seeds_mean() -> None:
    outputs, classes = gaussian(3, 8, 5), torch.randint(0, 5, (3, 8), generator=stream(0, "labels"))
    expected = torch.stack([nn.functional.cross_entropy(one, label) for one, label in zip(outputs, classes, strict=True)])
    torch.testing.assert_close(LOSSES["cross-entropy"](outputs, classes), expected, rtol=1e-13, atol=0)
    signs = (gaussian(3, 8, seed=1) > 0) * 2.0 - 1
    f = outputs[..., :1]
    torch.testing.assert_close(LOSSES["squared-error"](f, signs), ((f[..., 0] - signs) ** 2).mean(1), rtol=1e-13, atol=0)
    grown = torch.where(outputs >= 0, outputs + 1, 1 / (1 - outputs))
    shares = (grown / grown.sum(-1, keepdim=True)).gather(-1, classes[..., None])
    torch.testing.assert_close(LOSSES["stablemax-cross-entropy"](outputs, classes), -shares.log().mean((1, 2)))
    torch.testing.assert_close(LOSSES["hinge"](f, signs), (1 - f[..., 0] * signs).clamp_min(0).mean(1), rtol=1e-13, atol=0)


def test_known_losses() -> None:
    assert LOSSES["cross-entropy"](torch.zeros(1, 4, 7), torch.zeros(1, 4, dtype=torch.int64)).item() == pytest.approx(
        math.log(7)
    )
    outputs, classes = torch.tensor([[[2.0, -1.0, 0.0]]]), torch.tensor([[0]])  # they grow to 3, 1/2 and 1
    assert LOSSES["stablemax-cross-entropy"](outputs, classes).item() == pytest.approx(math.log(4.5 / 3))
    f, y = torch.tensor([[[0.5], [-2.0]]]), torch.tensor([[1.0, 1.0]])
    assert LOSSES["squared-error"](f, y).item() == pytest.approx((0.25 + 9) / 2)
    assert LOSSES["hinge"](f, y).item() == pytest.approx((0.5 + 3) / 2)


def test_stablemax_still_learns_where_softmax_rounds_to_nothing() -> None:
    outputs = torch.tensor([[[200.0, 0.0, 1.0, -300.0]]])
    slopes = {}
    for name in ("cross-entropy", "stablemax-cross-entropy"):
        x = outputs.clone().requires_grad_()
        LOSSES[name](x, torch.tensor([[0]])).sum().backward()
        slopes[name] = x.grad[0, 0]
    assert torch.equal(slopes["cross-entropy"], torch.zeros(4))
    assert slopes["stablemax-cross-entropy"][0] < 0 < slopes["stablemax-cross-entropy"][1:].min()
    total = 201 + 1 + 2 + 1 / 301  # the derivatives of x + 1 at 0 and 1, and of 1 / (1 - x) at -300
    torch.testing.assert_close(slopes["stablemax-cross-entropy"][1:], torch.tensor([1, 1, 1 / 301**2]) / total)


def test_right_is_the_largest_output_or_the_sign() -> None:
    assert is_correct(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]]), torch.tensor([[1, 1]])).tolist() == [[True, False]]
    signs = is_correct(torch.tensor([[[2.0], [-0.1], [0.0], [math.nan]]]), torch.tensor([[1.0, 1.0, 1.0, 1.0]]))
    assert signs.tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("points", [1, 9, 10, 11, 25, 30])
@pytest.mark.parametrize("chunk", [10, 1000])
def test_evaluate_is_the_direct_computation(monkeypatch: pytest.MonkeyPatch, points: int, chunk: int) -> None:
    monkeypatch.setitem(measure.CHUNK, "cpu", chunk)
    inputs, weight = gaussian(3, points, 6, dtype=torch.float32), gaussian(3, 4, 6, seed=1, dtype=torch.float32)
    labels = torch.randint(0, 4, (3, points), generator=stream(0, "labels"))
    sizes: list[int] = []

    def forward(part: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        sizes.append(part.shape[1])
        return part @ weight.mT

    loss, accuracy = evaluate(forward, LOSSES["cross-entropy"], inputs, labels)
    assert (sum(sizes), max(sizes)) == (points, min(points, chunk))
    assert loss.dtype == accuracy.dtype == torch.float64
    outputs = (inputs @ weight.mT).double()
    expected = nn.functional.cross_entropy(outputs.mT, labels, reduction="none").mean(1)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)  # outputs are float32
    assert (accuracy * points).tolist() == (outputs.argmax(-1) == labels).sum(1).tolist()


# spectra


@law
@given(seed=st.integers(0, 1000), rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_singular_values_are_the_librarys(seed: int, rows: int, columns: int) -> None:
    G = gaussian(3, rows, columns, seed=seed, dtype=torch.float32)
    found, exact = singular_values(G), eg.spectrum(G).values
    assert found.shape == (3, min(rows, columns))
    assert found.dtype == torch.float64
    assert float((found - exact).abs().max()) <= 2e-8 * float(exact.max())  # the root of float64's rounding, as documented


def test_singular_values_of_a_wide_range_are_right_to_1e_8_of_the_largest() -> None:
    values = [10.0**-k for k in range(8)]
    found = singular_values(matrix_with(values, 8, 20))[0]
    assert float((found - torch.tensor(values, dtype=torch.float64)).abs().max()) <= 2e-8


def test_a_gradient_that_is_not_finite_has_no_spectrum_and_leaves_its_neighbours() -> None:
    G = gaussian(3, 4, 5)
    expected = singular_values(G)
    G[1, 2, 3] = math.nan
    found = singular_values(G)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    measured = spectral_measures(found)
    assert all(torch.isfinite(value[[0, 2]]).all() for value in measured.values())
    assert math.isnan(measured["sigma_max"][1])


def test_known_spectra() -> None:
    measured = spectral_measures(torch.tensor([[4.0, 2.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0], [5.0, 0.0, 0.0, 0.0]]).double())
    assert measured["sigma_max"].tolist() == [4, 3, 5]
    assert measured["sigma_min"].tolist() == [1, 3, 5]  # of those above the noise
    assert measured["rank"].tolist() == [4, 4, 1]
    entropy = 1 / 2 * math.log(2) + 1 / 4 * math.log(4) + 2 / 8 * math.log(8)
    torch.testing.assert_close(measured["effective_rank"], torch.tensor([math.exp(entropy), 4, 1]).double())


def test_a_rank_deficient_gradient_is_measured_on_what_is_not_noise() -> None:
    measured = spectral_measures(singular_values(matrix_with([4.0, 2.0, 1.0, 0.0, 0.0], 5, 9)))
    assert int(measured["rank"]) == 3
    assert float(measured["sigma_min"]) == pytest.approx(1.0)
    assert float(measured["effective_rank"]) == pytest.approx(
        float(eg.spectrum(matrix_with([4, 2, 1], 3, 3)).effective_rank)
    )


def test_directions_at_the_cut_are_noise() -> None:
    values = torch.tensor([[1.0, 2 * CUT, CUT / 2]]).double()
    assert spectral_measures(values)["rank"].tolist() == [2]
    assert spectral_measures(1e-9 * values)["rank"].tolist() == [2]  # relative to the largest


def test_a_gradient_of_zeros_has_no_directions() -> None:
    measured = spectral_measures(singular_values(torch.zeros(1, 4, 5)))
    assert (float(measured["sigma_max"]), int(measured["rank"])) == (0.0, 0)
    assert not math.isfinite(measured["sigma_min"])  # there is none: stored as null


@law
@given(seed=st.integers(0, 1000), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_effective_rank_is_the_librarys(seed: int, rows: int, columns: int) -> None:
    G = gaussian(2, rows, columns, seed=seed)
    expected = eg.spectrum(G).effective_rank
    torch.testing.assert_close(spectral_measures(singular_values(G))["effective_rank"], expected, rtol=1e-5, atol=0)


# norms


def test_known_norms_and_distances() -> None:
    start = {"a": torch.zeros(2, 1, 2), "b": torch.zeros(2, 2)}
    now = {"a": torch.tensor([[[3.0, 0.0]], [[1.0, 1.0]]]), "b": torch.tensor([[0.0, 4.0], [1.0, 1.0]])}
    assert {name: value.tolist() for name, value in norms(now, start).items()} == {
        "weight_norm": [5, 2],
        "distance": [5, 2],
    }
    assert norms(now, now)["distance"].tolist() == [0, 0]
    moved = {name: tensor + 1 for name, tensor in now.items()}
    assert norms(moved, now)["distance"].tolist() == [2, 2]


# the trajectory


def test_the_sketch_keeps_inner_products_within_its_error() -> None:
    """Var <Sx, Sy> = (|x|² |y|² + <x, y>² - 2 sum x²y²) / SKETCH: five of its roots for each of 66 pairs."""
    entries = 20_000
    x = gaussian(12, entries)
    x[6:] += x[:6]  # pairs that are far from orthogonal
    sketch = Sketch({"w": x})
    found = sketch({"w": x}, {"w": torch.zeros_like(x)}).double()
    products, exact = found @ found.mT, x @ x.mT
    size = x.square().sum(1)
    sigma = ((size[:, None] * size + exact.square()) / SKETCH).sqrt()
    assert float(((products - exact) / sigma).abs().max()) < 5
    assert 1 / math.sqrt(SKETCH) == pytest.approx(0.03, abs=0.002)  # the 3 % of its docstring


def test_the_sketch_is_linear_and_the_same_for_every_seed_and_run() -> None:
    x, y = gaussian(2, 300), gaussian(2, 300, seed=1)
    zero = torch.zeros_like(x)
    sketch = Sketch({"w": x})
    both = sketch({"w": x + 2 * y}, {"w": zero})
    torch.testing.assert_close(both, sketch({"w": x}, {"w": zero}) + 2 * sketch({"w": y}, {"w": zero}), rtol=0, atol=1e-5)
    again = Sketch({"w": x[:1]})({"w": x[1:]}, {"w": zero[1:]})
    assert torch.equal(again[0], sketch({"w": x}, {"w": zero})[1])
    assert torch.equal(sketch({"w": x}, {"w": x}), torch.zeros(2, SKETCH))


def test_every_entry_goes_into_one_bucket_with_a_sign() -> None:
    unit = torch.eye(50, dtype=torch.float64)[:, None]
    columns = Sketch({"w": unit})({"w": unit}, {"w": torch.zeros_like(unit)})
    assert columns.abs().sum(1).tolist() == [1.0] * 50
    assert set(columns.unique().tolist()) == {-1.0, 0.0, 1.0}


def test_pca_of_sketches_is_close_to_that_of_the_trajectory() -> None:
    """A real one: the shares of the leading components, and the path in their plane."""
    ensemble, stepper = together(small("addition-97", "model.width=64", "task.modulus=11"), "egd", [0])
    sketch = Sketch(ensemble.parameters)
    whole, sketched = [], []
    for epoch in train(ensemble, stepper):
        flat = [tensor.flatten() - ensemble.start[name].flatten() for name, tensor in parameters(ensemble)[0].items()]
        whole.append(torch.cat(flat).double())
        sketched.append(sketch(ensemble.parameters, ensemble.start)[0].double())
        if epoch.number == 39:
            break

    def components(points: list[Tensor]) -> tuple[Tensor, Tensor]:
        X = torch.stack(points)
        U, S, _ = torch.linalg.svd(X - X.mean(0), full_matrices=False)
        return S.square() / S.square().sum(), U * S

    shares, path = components(whole)
    found_shares, found_path = components(sketched)
    assert float(shares[:2].sum()) > 0.5  # there is something to see
    assert float((shares - found_shares).abs().max()) < 2 / math.sqrt(SKETCH)
    for index in range(2):
        cosine = torch.cosine_similarity(path[:, index], found_path[:, index], dim=0).abs()
        assert float(cosine) > 0.99


@law
@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_what_is_encoded_is_decoded(values: list[float]) -> None:
    back = np.asarray(decode(encode(values)))
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, np.array(values, np.float32))


def test_an_encoded_vector_is_plain_text_for_any_machine() -> None:
    assert encode([1.0, -2.0]) == "AACAPwAAAMA="  # little-endian float32


# snapshots


def test_snapshots_are_ten_per_decade() -> None:
    kept = [epoch for epoch in range(100_001) if is_snapshot(epoch)]
    assert kept[:11] == [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16]
    for decade in (10, 100, 1000, 10_000):
        within = [epoch for epoch in kept if decade <= epoch < 10 * decade]
        assert len(within) == 10
        assert within[0] == decade
    ratios = [after / before for before, after in pairwise(kept[8:])]
    assert all(1.2 < ratio < 1.32 for ratio in ratios)  # the tenth root of ten is 1.259, and epochs are whole
