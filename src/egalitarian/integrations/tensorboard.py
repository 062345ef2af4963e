"""TensorBoard: writes the spectra of gradients, from any training loop."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim import Optimizer

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise ImportError(
        f"tensorboard must be installed for SpectrumWriter, got {error}; pip install 'egalitarian[tensorboard]'"
    ) from error

from egalitarian.kernels import Spectrum
from egalitarian.optimizers import Attachment, warn_user


class SpectrumWriter:
    """Writes the spectra that an attachment has stored to TensorBoard, each at its own step.

    For each matrix it writes the condition number, the effective rank, the largest singular value, and a histogram of
    log10(s / s_max). For a stack, these numbers are medians over its elements. It also writes whether EGD is on; for a
    stack, the share of elements where it is on.

    `write` waits for the device, so call it once per epoch or log line. `EGDCallback` and `EGDTrainerCallback` call it if
    you give them a `SpectrumWriter`.

    Args:
        writer: a `SummaryWriter`. With Lightning's `TensorBoardLogger`, pass its `experiment`.

    Raises:
        TypeError: `writer` cannot write scalars and histograms.

    >>> from torch.utils.tensorboard import SummaryWriter
    >>> from egalitarian import attach
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer, writer = torch.optim.SGD(model.parameters(), lr=0.1), SummaryWriter("spectra")
    >>> egd, spectra = attach(optimizer, model, spectrum_every=1), SpectrumWriter(writer)
    >>> model(torch.ones(4, 3)).sum().backward()
    >>> optimizer.step()
    >>> spectra.write(egd)
    >>> writer.close()
    """

    def __init__(self, writer: SummaryWriter) -> None:
        if not (hasattr(writer, "add_scalar") and hasattr(writer, "add_histogram")):
            raise TypeError(f"writer must be a SummaryWriter, got {type(writer).__name__}; pass SummaryWriter('spectra')")
        self._writer = writer
        self._last: WeakKeyDictionary[Attachment, dict[str, int]] = WeakKeyDictionary()
        self._writers: dict[str, WeakSet[Optimizer]] = {}  # by tag

    def write(self, egd: Attachment, tag: str = "egd") -> None:
        """Writes what `egd` has stored since the last call, so that each step is written once.

        Args:
            egd: an attachment with `spectrum_every`.
            tag: what the names in TensorBoard begin with. Each attachment needs its own.

        Raises:
            TypeError: `egd` is not an attachment.
            RuntimeError: `attach` was called without `spectrum_every`.
        """
        if not isinstance(egd, Attachment):
            raise TypeError(f"egd must be an Attachment, got {type(egd).__name__}; pass what attach returned")
        last = self._last.setdefault(egd, {})
        written = -1
        for name, kept in egd.spectrum().items():
            for step in kept:
                if step > last.get(name, -1):
                    self._claim(egd, tag)
                    self._write_one(f"{tag}/{name}", kept[step], step)
                    last[name] = written = step
        if written >= 0:
            self._writer.add_scalar(f"{tag}/active", float(torch.as_tensor(egd.active).float().mean()), written)

    def _claim(self, egd: Attachment, tag: str) -> None:
        """Warns once if two optimizers write under the same tag, which mixes their curves."""
        known = self._writers.get(tag)
        if known is not None and egd.optimizer not in known:
            warn_user(
                f"tag must differ between attachments, got a second one with {tag!r}, whose curves are mixed with those of "
                f"the first; pass write(egd, tag=...), or a SpectrumWriter of another SummaryWriter"
            )
        self._writers.setdefault(tag, WeakSet()).add(egd.optimizer)

    def _write_one(self, name: str, spectrum: Spectrum, step: int) -> None:
        largest = spectrum.values[..., 0]
        for what, value in (
            ("condition", spectrum.condition),
            ("effective_rank", spectrum.effective_rank),
            ("largest", largest),
        ):
            self._writer.add_scalar(f"{name}/{what}", float(value.median()), step)
        shares = (spectrum.values / largest[..., None]).flatten()
        shares = shares[shares > 0]  # a zero has no logarithm, and NaN is no share
        if shares.numel():
            self._writer.add_histogram(f"{name}/log10_share", shares.log10().cpu(), step)
