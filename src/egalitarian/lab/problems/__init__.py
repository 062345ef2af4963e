"""What is learnt and by which network: tasks, models and data sets. Importing it registers the kinds of tasks and models.

A task makes one seed's data as tensors. A model makes the parameters of one seed and computes its outputs.
"""

from egalitarian.lab.problems.datasets import (
    DATASETS,
    DataError,
    Dataset,
    FetchListener,
    FileCheck,
    FileState,
    check_file,
    cifar10,
    cifar10_test,
    default_folder,
    fetch,
    mnist,
)
from egalitarian.lab.problems.groups import Group
from egalitarian.lab.problems.models import MLP, Layers, Model, Parameters
from egalitarian.lab.problems.networks import CNN, Transformer
from egalitarian.lab.problems.tasks import (
    CIFAR10,
    MNIST,
    Data,
    Modular,
    ModularSequence,
    Parity,
    ShuffledCIFAR10,
    Split,
    Task,
    stream,
)

__all__ = [
    "CIFAR10",
    "CNN",
    "DATASETS",
    "MLP",
    "MNIST",
    "Data",
    "DataError",
    "Dataset",
    "FetchListener",
    "FileCheck",
    "FileState",
    "Group",
    "Layers",
    "Model",
    "Modular",
    "ModularSequence",
    "Parameters",
    "Parity",
    "ShuffledCIFAR10",
    "Split",
    "Task",
    "Transformer",
    "check_file",
    "cifar10",
    "cifar10_test",
    "default_folder",
    "fetch",
    "mnist",
    "stream",
]
