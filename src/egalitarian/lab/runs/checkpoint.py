"""Checkpoints: a seed between two epochs, as a safetensors file with checksums of weights, header and records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from egalitarian.lab.runs.files import StoreError, readable, write_atomically

PATTERN = "checkpoint-*.safetensors"


class Checkpoint(NamedTuple):
    """A seed between two epochs."""

    epoch: int
    """The next one to train."""
    batch: tuple[int, ...]
    """The seeds it was trained with, itself included."""
    size: int
    """Bytes of the records before it."""
    digest: str
    """SHA-256 of those bytes."""
    path: Path

    def tensors(self) -> dict[str, Tensor]:
        """Weights and optimizer state; an error if their checksum is wrong, or the run is sealed."""
        with readable(self.path), safe_open(self.path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if file.metadata().get("weights", digest := _digest(tensors)) != digest:  # the format itself has no checksum
                raise ValueError("its weights are not those that were saved")
        if not tensors:
            raise StoreError(
                f"{self.path.parent} must have its weights to be trained further, got a sealed run; train it again in "
                f"another --runs folder"
            )
        return tensors

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """With these weights; none seal the run."""
        saved = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        metadata = {
            "epoch": str(self.epoch),
            "company": ",".join(map(str, self.batch)),  # the key of every version so far
            "size": str(self.size),
            "digest": self.digest,
            "folder": self.path.parent.name,
            "weights": _digest(saved),
        }
        write_atomically(self.path, save(saved, {**metadata, "header": _header(metadata)}))

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """The header alone, by its checksum."""
        with readable(path), safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("header", header := _header(metadata)) != header:
                raise ValueError("its header is not the one that was saved")
            if not path.parent.name.startswith(metadata.get("folder", "")):
                raise ValueError(f"it is a checkpoint of {metadata['folder']}")
            batch = tuple(int(seed) for seed in metadata["company"].split(","))
            return Checkpoint(int(metadata["epoch"]), batch, int(metadata["size"]), metadata["digest"], path)


def checkpoint_path(folder: Path, epoch: int) -> Path:
    return folder / f"checkpoint-{epoch}.safetensors"


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode() + tensors[key].numpy().tobytes())
    return digest.hexdigest()


def _header(metadata: Mapping[str, str]) -> str:
    """A checksum of all other entries."""
    text = "\n".join(f"{key}={metadata[key]}" for key in sorted(metadata) if key != "header")
    return hashlib.sha256(text.encode()).hexdigest()
