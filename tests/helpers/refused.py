"""Experiments that are refused, and files of users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egalitarian.lab.config import SpecError, load


def message(*arguments: Any) -> str:
    """The text of the error that loading raises: what, the rule, the value, a remedy."""
    with pytest.raises(SpecError) as caught:
        load(*arguments)
    text = str(caught.value)
    assert " must " in text
    assert ", got " in text.partition(" must ")[2]
    assert "; " in text.partition(", got ")[2]
    return text


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
