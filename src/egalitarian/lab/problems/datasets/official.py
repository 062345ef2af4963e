"""The official files: where they are published, and the size and SHA-256 of each archive and of each file in it."""

from __future__ import annotations

from egalitarian.lab.problems.datasets.files import Archive, DataFile, Dataset

MNIST_SOURCES = ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist")
CIFAR_SOURCES = ("https://www.cs.toronto.edu/~kriz",)


def _gzipped(name: str, size: int, sha256: str, unzipped_size: int, unzipped_sha256: str) -> Archive:
    path = f"MNIST/raw/{name}"
    urls = tuple(f"{source}/{name}.gz" for source in MNIST_SOURCES)
    return Archive(f"{path}.gz", size, sha256, urls, (DataFile(path, unzipped_size, unzipped_sha256),))


def _batch(name: str, sha256: str) -> DataFile:
    return DataFile(f"cifar-10-batches-bin/{name}.bin", 30_730_000, sha256)


MNIST = Dataset(
    "mnist",
    "MNIST",
    (
        _gzipped(
            "train-images-idx3-ubyte",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _gzipped(
            "train-labels-idx1-ubyte",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        _gzipped(
            "t10k-images-idx3-ubyte",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _gzipped(
            "t10k-labels-idx1-ubyte",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

CIFAR_10 = Dataset(
    "cifar-10",
    "CIFAR-10",
    (
        Archive(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            tuple(f"{source}/cifar-10-binary.tar.gz" for source in CIFAR_SOURCES),
            (
                _batch("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                _batch("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                _batch("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                _batch("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                _batch("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                _batch("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            ),
        ),
    ),
)

DATASETS = {dataset.name: dataset for dataset in (MNIST, CIFAR_10)}
