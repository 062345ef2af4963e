"""Tasks: what is to be learnt, as tensors. A seed means the same data on every device and in any company.

To add one, subclass `Task` in a file of your own and name that file in the experiment: see docs/lab.md.
"""

from egalitarian.lab.problems.tasks.base import Data, Split, Task, stream
from egalitarian.lab.problems.tasks.images import CIFAR10, MNIST, ShuffledCIFAR10
from egalitarian.lab.problems.tasks.modular import Modular, is_prime
from egalitarian.lab.problems.tasks.parity import Parity
from egalitarian.lab.problems.tasks.sequence import ModularSequence

__all__ = [
    "CIFAR10",
    "MNIST",
    "Data",
    "Modular",
    "ModularSequence",
    "Parity",
    "ShuffledCIFAR10",
    "Split",
    "Task",
    "is_prime",
    "stream",
]
