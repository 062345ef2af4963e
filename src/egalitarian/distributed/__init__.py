"""Matrices that several ranks hold: which rank computes which, and how gradients get there and back.

`Engine` asks `Ranks` at each step. It reads DTensors and the DistributedDataParallel modules around a model. Without
either, nothing here runs. Filters act on what a rank holds; matrix transforms see whole matrices.
"""

from egalitarian.distributed.owners import Sharing, check_sharing
from egalitarian.distributed.passes import initial_memories, placed
from egalitarian.distributed.ranks import Ranks
from egalitarian.distributed.spread import is_dtensor, local

__all__ = ["Ranks", "Sharing", "check_sharing", "initial_memories", "is_dtensor", "local", "placed"]
