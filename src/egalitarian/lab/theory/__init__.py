"""The solvable toy problem, of Section 3 and the appendix on equal distributions: simulation and closed forms, numpy only.

Letters as in the paper: eps is the variance of the slow feature, theta the angle of v, s the half-margin of the training
data, eta the step size, zeta = |w(0)|, k the step, w(k) = (mu_k, nu_k). A formula that is wrong in print ends in
`_as_printed`; the corrected one has the plain name.
"""

from egalitarian.lab.theory.claim import ClaimSummary, ToyClaim, summarize
from egalitarian.lab.theory.claims import toy_claims
from egalitarian.lab.theory.curves import (
    Cloud,
    Curve,
    PlateauCurve,
    clouds,
    equal_curves,
    plateaus_over_eps,
    plateaus_over_zeta,
    shift_curves,
)
from egalitarian.lab.theory.problem import EqualProblem, ShiftedProblem, check_eps, start_at
from egalitarian.lab.theory.settings import (
    CloudSettings,
    CurveSettings,
    EqualCurveSettings,
    PlateauSettings,
    load_settings,
)
from egalitarian.lab.theory.theorem import plateau, plateau_egd, plateau_large

__all__ = [
    "ClaimSummary",
    "Cloud",
    "CloudSettings",
    "Curve",
    "CurveSettings",
    "EqualCurveSettings",
    "EqualProblem",
    "PlateauCurve",
    "PlateauSettings",
    "ShiftedProblem",
    "ToyClaim",
    "check_eps",
    "clouds",
    "equal_curves",
    "load_settings",
    "plateau",
    "plateau_egd",
    "plateau_large",
    "plateaus_over_eps",
    "plateaus_over_zeta",
    "shift_curves",
    "start_at",
    "summarize",
    "toy_claims",
]
