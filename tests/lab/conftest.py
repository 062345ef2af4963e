"""What the lab's tests share."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pictures import write_cifar, write_mnist

from egalitarian.lab.problems import tasks as image_tasks


@pytest.fixture
def few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with small files that the tasks take for MNIST and CIFAR-10."""
    folder = tmp_path / "data"
    mnist, cifar = write_mnist(folder), write_cifar(folder)
    monkeypatch.setenv("EGALITARIAN_DATA", str(folder))
    monkeypatch.setattr(image_tasks, "mnist", partial(image_tasks.mnist, dataset=mnist))
    monkeypatch.setattr(image_tasks, "cifar10", partial(image_tasks.cifar10, dataset=cifar))
    monkeypatch.setattr(image_tasks, "cifar10_test", partial(image_tasks.cifar10_test, dataset=cifar))
    return folder
