"""Transforms of matrices: the scales of `Polar`, the ranks of `LowRankPolar`, and settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toy import transformed

import egalitarian as eg


@pytest.mark.parametrize("shape", [(8, 2), (2, 8), (4, 4)])
def test_scales_are_those_of_torchs_muon(shape: tuple[int, int]) -> None:
    """As measured: one step of torch.optim.Muon on an orthogonal gradient, whose direction its iteration keeps."""
    grad = eg.polar(torch.randn(shape))
    for ours, theirs in (("spectral", "original"), ("rms", "match_rms_adamw")):
        steps = []
        for adjust in (theirs, None):
            weight = nn.Parameter(torch.zeros(shape))
            weight.grad = grad.clone()
            options = {} if adjust is None else {"adjust_lr_fn": adjust}
            torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, **options).step()
            steps.append(weight.detach().norm())
        base = max(1.0, shape[0] / shape[1]) ** 0.5  # torch's default is "original"
        ratio = transformed(eg.Polar(scale=ours), grad).norm() / grad.norm()  # type: ignore[arg-type]
        torch.testing.assert_close(ratio, steps[0] / steps[1] * base, rtol=1e-3, atol=0)


def test_an_adaptive_rank_is_printed_and_kept() -> None:
    torch.manual_seed(0)
    grad = torch.linalg.qr(torch.randn(6, 4)).Q @ torch.diag(torch.tensor([10.0, 5.0, 0.1, 0.1]))
    assert int((torch.linalg.svdvals(transformed(eg.LowRankPolar(3), grad)) > 0.5).sum()) == 3
    assert int((torch.linalg.svdvals(transformed(eg.LowRankPolar(3, share=0.99), grad)) > 0.5).sum()) == 2
    assert eg.LowRankPolar(3, share=0.99).note(6, 4) == "rank 3, or fewer that hold 0.99 of the spectrum"


def test_cap_lowers_the_rank_to_the_short_side() -> None:
    grad = torch.randn(4, 3)
    torch.testing.assert_close(transformed(eg.LowRankPolar(9, cap=True), grad), eg.polar(grad))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: eg.Polar(compute=torch.int8), ValueError, "compute must be one of .*got torch.int8"),
        (lambda: eg.Polar(compute="fp8"), ValueError, "got 'fp8'"),
        (lambda: eg.Polar(rtol=-1.0), ValueError, r"rtol must be in \[0, 1\), got -1.0"),
        (lambda: eg.Polar(floor=-1.0), ValueError, "floor must be a number >= 0, got -1.0"),
        (lambda: eg.Polar(method="qr"), ValueError, "method must be one of .*got 'qr'"),
        (lambda: eg.Polar(method="eigh", rtol=1e-9), ValueError, "rtol must be >= 5e-07 for method 'eigh'"),
        (lambda: eg.Polar(precision="rough"), ValueError, "precision must be one of .*got 'rough'"),
        (
            lambda: eg.Polar(precision="coarse", rtol=1e-3),
            ValueError,
            "rtol must be None for precision 'coarse', got 0.001",
        ),
        (lambda: eg.Polar(precision="coarse", floor=1e-6), ValueError, "floor must be None for precision 'coarse'"),
        (lambda: eg.Polar(precision="coarse", method="svd"), ValueError, "precision must be 'exact' for method 'svd'"),
        (lambda: eg.Polar(precision="coarse", method="eigh"), ValueError, "precision must be 'exact' for method 'eigh'"),
        (lambda: eg.Polar(precision="fast", method="svd"), ValueError, "precision must be 'exact' for method 'svd'"),
        (lambda: eg.Polar(scale="muon"), ValueError, "scale must be None, 'spectral' or 'rms', got 'muon'"),
        (lambda: eg.LowRankPolar(0), ValueError, "rank must be an integer >= 1, got 0"),
        (lambda: eg.LowRankPolar(2.5), ValueError, "got 2.5"),
        (lambda: eg.LowRankPolar(2, share=1.5), ValueError, r"share must be in \(0, 1\], got 1.5"),
        (lambda: eg.LowRankPolar(2, share="x"), TypeError, "share must be in"),
        (lambda: eg.LowRankPolar(2, iterations=0), ValueError, "iterations must be an integer >= 1, got 0"),
        (lambda: eg.LowRankPolar(2, oversample=-1), ValueError, "oversample must be an integer >= 0, got -1"),
        (lambda: eg.RowNorm(0.0), ValueError, "floor must be a number > 0, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused_at_construction(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (eg.Polar(), "Polar()"),
        (eg.Polar(precision="exact"), "Polar()"),
        (eg.Polar(precision="auto"), "Polar(precision='auto')"),
        (eg.Polar(precision="coarse"), "Polar(precision='coarse')"),
    ],
)
def test_the_precision_is_printed_unless_it_is_exact(transform: eg.Polar, text: str) -> None:
    assert repr(transform) == text


def printed(transform: Any) -> list[str]:
    layer = nn.Linear(3, 2)
    return str(eg.attach(torch.optim.SGD(layer.parameters(), lr=0.1), layer, transform).plan).splitlines()


def test_the_plan_says_what_the_precision_means() -> None:
    """The first line has what was asked for, and each matrix what it gets."""
    auto, exact, fast, coarse = (printed(eg.Polar(precision=tier)) for tier in ("auto", "exact", "fast", "coarse"))
    assert auto[0].startswith("Polar(precision='auto'); cut-off by the gradient's dtype (1e-06 for float32)")
    assert auto[0].endswith("; autocast unknown")
    assert auto[1].endswith("taken as 2 x 3, exact")
    assert exact[0].startswith("Polar(); cut-off by the gradient's dtype (1e-06 for float32)")
    assert fast[0].endswith("fast: directions below 1e-3 of the largest may come out weaker")
    assert coarse[0] == (
        "Polar(precision='coarse'); coarse: no cut-off, directions below 1/40 of the norm may come out weaker"
    )
    rows = [lines[1] for lines in (exact, fast, coarse)]
    assert [row.split("taken as ")[1] for row in rows] == ["2 x 3, exact", "2 x 3, fast", "2 x 3, coarse"]


def test_the_default_of_attach_and_egd_is_auto() -> None:
    layer = nn.Linear(3, 2)
    assert "Polar(precision='auto')" in repr(eg.attach(torch.optim.SGD(layer.parameters(), lr=0.1), layer))
    optimizer = eg.EGD(layer.parameters(), lr=0.1)
    assert optimizer.param_groups[0]["egd_transform"] == "(Polar(precision='auto'),)"


def test_a_coarse_transform_is_the_coarse_kernel() -> None:
    grad = torch.randn(5, 7)
    assert torch.equal(transformed(eg.Polar(precision="coarse"), grad), eg.polar(grad, precision="coarse"))
    scaled = transformed(eg.Polar(precision="coarse", scale="rms"), grad)
    torch.testing.assert_close(scaled, 0.2 * 7**0.5 * eg.polar(grad, precision="coarse"))
