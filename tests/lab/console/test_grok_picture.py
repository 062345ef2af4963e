"""The picture at the end of `egalitarian grok`: its title, its legend, and the accuracy of a guess."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from compared import ADDITION, known
from matplotlib.figure import Figure

from egalitarian.lab.config import load
from egalitarian.lab.console.grok import chance, draw_grok, title
from egalitarian.lab.runs import Store, StoreError


def test_the_legend_has_every_method(tmp_path: Path) -> None:
    shown = [known(name, None) for name in ADDITION.methods]
    figures: list[Figure] = []
    with patch.object(Figure, "savefig", lambda figure, *_, **__: figures.append(figure)):
        draw_grok(Store(tmp_path), ADDITION, shown, tmp_path / "grok.png")
    (figure,) = figures
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().y0 >= 0


def test_a_full_disk_leaves_the_earlier_picture(tmp_path: Path) -> None:
    path, full = tmp_path / "grok.png", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.write_text("earlier")
    said = "grok.png must be writable, got: No space left on device; free some space, or name another file with --picture"
    with patch.object(os, "fsync", side_effect=full), pytest.raises(StoreError, match=said):
        draw_grok(Store(tmp_path), ADDITION, [known("egd", None)], path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("grok.png", "earlier")]


def test_the_picture_says_what_is_seen() -> None:
    egd, after = known("egd", 112), known("egd-after", 16, 17)
    assert title(ADDITION, [egd]) == "Addition modulo 97: EGD passes 95 % test accuracy at epoch 112"
    first = "EGD, decay after (lr 3) passes 95 % test accuracy first, at epoch 16.5 (median)"
    assert title(ADDITION, [egd, after]) == f"Addition modulo 97: {first}"
    assert title(ADDITION, [known("sgd", None)]) == "Addition modulo 97: no method has passed 95 % test accuracy"


@pytest.mark.parametrize(("name", "share"), [("addition-97", 1 / 97), ("parity-3", 0.5), ("mnist", 0.1)])
def test_chance_is_known(name: str, share: float) -> None:
    assert chance(load(name)) == share
