"""Every claim of the toy problem against simulation: `toy_claims()` computes all rows, or those of one claim."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from egalitarian.lab.theory import claims_appendix, claims_section3
from egalitarian.lab.theory.claim import ToyClaim
from egalitarian.lab.theory.settings import ClaimSettings, load_settings

Part = Callable[[ClaimSettings], Iterable[ToyClaim]]

ORDERS = ("order of lambda_+", "order of lambda_-", "fast mode", "slow direction")
PARTS: dict[Part, tuple[str, ...]] = {
    claims_section3.constant_rows: ("m1", "m1 range", "m2", "step"),
    claims_section3.theorem_rows: ("theorem-1 (nu_k >= 0)", "theorem-1 (nu_k < 0)"),
    claims_section3.cosine_rows: ("r_k", "crossing"),
    claims_section3.finite_sample_rows: ("late error", "w_ols spread"),
    claims_section3.training_rows: ("memorised",),
    claims_section3.corollary_rows: ("corollary A (u2 > 0)", "corollary A (u2 < 0)", "corollary B", "time to grok"),
    claims_section3.phase_rows: ("phase",),
    claims_section3.order_rows: ("GD order", "EGD order", "small-start order", "EGD and zeta", "EGD length (ours)"),
    claims_section3.polar_rows: ("polar order",),
    claims_appendix.moment_rows: (
        *(f"moment {name}" for name in ("Z", "a", "b", "d", "c1", "c2")),
        *(f"{order} ({kind})" for order in ORDERS for kind in ("acute", "obtuse")),
        "order of b (acute)",
    ),
    claims_appendix.algebra_rows: ("M^k", "r_+ range"),
    claims_appendix.path_rows: ("path mu_k", "path nu_k", "test error (nu_k >= 0)", "test error (nu_k < 0)"),
    claims_appendix.plateau_rows: ("boxed bounds", "order of the plateau", "growth with the start"),
    claims_appendix.limit_rows: ("near start (ours)", "far start (ours)"),
    claims_appendix.same_error_rows: ("memorised (appendix)",),
}
"""Functions that simulate several claims together, in the paper's order, and the keys of these claims."""


def toy_claims(key: str | None = None, *, quick: bool = False) -> list[ToyClaim]:
    """All rows in the paper's order, or those of one claim. Draws are seeded: two calls give the same rows.

    `quick` uses the smaller grid and samples of toy.toml.

    Raises:
        ValueError: no claim has this key.
    """
    settings = load_settings(ClaimSettings, quick=quick)
    parts = PARTS if key is None else [_part_of(key)]
    return [row for part in parts for row in part(settings) if key in (None, row.key)]


def _part_of(key: str) -> Part:
    """The function that simulates a claim."""
    by_key = {name: part for part, names in PARTS.items() for name in names}
    if key not in by_key:
        close = difflib.get_close_matches(key, by_key, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(by_key)}"
        raise ValueError(f"key must be that of one of the toy problem's claims, got {key!r}; {hint}")
    return by_key[key]
