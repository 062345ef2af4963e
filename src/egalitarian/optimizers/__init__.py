"""EGD inside an optimizer: `attach` adds it to any torch optimizer, `EGD` is SGD with EGD built in.

This room registers hooks, reads param groups, handles closures and gradient scalers, counts steps and switches EGD on and
off (`Until`). `attach` and `EGD` share `Engine`. `apply` writes the gradients, `kernels` has the maths.
"""

from egalitarian.optimizers.attachment import Attachment, attach
from egalitarian.optimizers.checkpoint import has_stepped
from egalitarian.optimizers.egd import EGD
from egalitarian.optimizers.notices import warn_user
from egalitarian.optimizers.until import Until

__all__ = ["EGD", "Attachment", "Until", "attach", "has_stepped", "warn_user"]
