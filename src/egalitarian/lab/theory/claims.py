"""Every claim of the toy problem, computed when asked for: `toy_claims()` simulates, nothing is looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from egalitarian.lab.theory import claims_equal, claims_plateau, claims_shift, claims_wedge
from egalitarian.lab.theory.claim import Summary, ToyClaim, summarize
from egalitarian.lab.theory.settings import ClaimSettings, load

__all__ = ["PARTS", "Summary", "ToyClaim", "summarize", "toy_claims"]

PARTS: tuple[Callable[[ClaimSettings], Iterable[ToyClaim]], ...] = (
    claims_shift.constant_rows,
    claims_shift.theorem_rows,
    claims_shift.cosine_rows,
    claims_shift.finite_sample_rows,
    claims_shift.training_rows,
    claims_plateau.corollary_rows,
    claims_plateau.phase_rows,
    claims_plateau.order_rows,
    claims_plateau.polar_rows,
    claims_wedge.moment_rows,
    claims_wedge.algebra_rows,
    claims_equal.path_rows,
    claims_equal.plateau_rows,
    claims_equal.limit_rows,
    claims_equal.same_error_rows,
)


def toy_claims(*, quick: bool = False) -> list[ToyClaim]:
    """All rows, in the paper's order; seeded, so two calls give the same rows.

    `quick` takes the smaller grid and samples of toy.toml.
    """
    settings = load(ClaimSettings, quick=quick)
    return [row for part in PARTS for row in part(settings)]
