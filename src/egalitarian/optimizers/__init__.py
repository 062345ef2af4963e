"""EGD inside an optimizer: `attach` adds it to any torch optimizer, `EGD` is an SGD that has it built in.

This room registers hooks, reads param groups, handles closures and gradient scalers, counts steps and switches EGD on and
off (`Until`). `Engine` is what both share. The maths and the writing of gradients are elsewhere.
"""

from egalitarian.optimizers.attachment import Attachment, attach
from egalitarian.optimizers.egd import EGD
from egalitarian.optimizers.until import Until

__all__ = ["EGD", "Attachment", "Until", "attach"]
