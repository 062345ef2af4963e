"""Images with their classes, as bytes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from egalitarian.lab.problems.datasets.files import DataError

CLASSES = 10


class Images(NamedTuple):
    """uint8 pixels (images, ..., height, width), and a uint8 class (images,) of each."""

    pixels: Tensor
    labels: Tensor


def checked(images: Images, where: object) -> Images:
    """As many classes as images, each below 10."""
    pixels, labels = images
    if len(pixels) != len(labels):
        raise DataError(f"{where} must have a class for each image, got {len(labels)} for {len(pixels)}; fetch both again")
    if len(labels) and int(labels.max()) >= CLASSES:
        raise DataError(f"{where} must have classes from 0 to {CLASSES - 1}, got {int(labels.max())}; fetch it again")
    return images
