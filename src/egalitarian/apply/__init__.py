"""The only room that writes `p.grad`: gradients go through a chain of transforms, in batches of equal shapes.

`equalize_` is public. `attach` and `EGD` call `transform_gradients` at each step, with settings and the `State` of the
step before. `Batches` keeps what depends on shapes alone, so that a step does not group matrices again.
"""

from egalitarian.apply.batch import Batch, Batches
from egalitarian.apply.captured import Captures
from egalitarian.apply.equalize import affected, check_chain, equalize_
from egalitarian.apply.gradients import PassSettings, filtered, prepared_gradient, replaced_gradient, write_gradient
from egalitarian.apply.passes import check_gradient, check_gradients, gradients_of, refuse_nonfinite, transform_gradients
from egalitarian.apply.state import State, copied_in_place, gradient_dtype, initial_memory, loaded_memory, start

__all__ = [
    "Batch",
    "Batches",
    "Captures",
    "PassSettings",
    "State",
    "affected",
    "check_chain",
    "check_gradient",
    "check_gradients",
    "copied_in_place",
    "equalize_",
    "filtered",
    "gradient_dtype",
    "gradients_of",
    "initial_memory",
    "loaded_memory",
    "prepared_gradient",
    "refuse_nonfinite",
    "replaced_gradient",
    "start",
    "transform_gradients",
    "write_gradient",
]
