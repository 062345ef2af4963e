"""MNIST and CIFAR-10 from their official files: checking, downloading and reading them.

    folder/MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte
    folder/cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin

No file is used before its size and SHA-256 have been compared with the official ones.
"""

from egalitarian.lab.problems.datasets.download import FetchListener, Patience
from egalitarian.lab.problems.datasets.files import (
    DATASETS,
    DataError,
    Dataset,
    FileCheck,
    FileState,
    check_file,
    default_folder,
)
from egalitarian.lab.problems.datasets.images import CLASSES, Images, cifar10, cifar10_test, fetch, mnist

__all__ = [
    "CLASSES",
    "DATASETS",
    "DataError",
    "Dataset",
    "FetchListener",
    "FileCheck",
    "FileState",
    "Images",
    "Patience",
    "check_file",
    "cifar10",
    "cifar10_test",
    "default_folder",
    "fetch",
    "mnist",
]
