"""Gives warnings that point at the user's code."""

from __future__ import annotations

import sys
import warnings

_TRAINERS = {"lightning", "pytorch_lightning", "transformers", "accelerate"}
_INSIDE = {"egalitarian", "torch", *sys.stdlib_module_names, *_TRAINERS}


def warn_user(message: str) -> None:
    """Warns at the innermost line of code that is not in this library, torch, Python's own modules or a trainer.

    Every call shows a warning, also at the same line, since one line may step several optimizers. Callers must not repeat
    themselves.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame = frame.f_back
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno, module)
