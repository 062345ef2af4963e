"""The picture at the end of `egalitarian grok`: its title and its names."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest
from compared import ADDITION, known
from matplotlib.figure import Figure

from egalitarian.lab.console.grok import draw_grok, title
from egalitarian.lab.runs import Store, StoreError


def test_every_method_has_its_name_inside_the_picture(tmp_path: Path) -> None:
    shown = [known(name, None) for name in ADDITION.methods]
    figures: list[Figure] = []
    with patch.object(Figure, "savefig", lambda figure, *_, **__: figures.append(figure)):
        draw_grok(Store(tmp_path), ADDITION, shown, tmp_path / "grok.png")
    (figure,) = figures
    figure.draw_without_rendering()
    names = [text for text in figure.axes[0].texts if ":" in text.get_text()]
    assert len(names) == len(shown)
    boxes = [text.get_window_extent() for text in names]
    assert all(box.y1 <= figure.bbox.height and box.x1 <= figure.bbox.width for box in boxes)


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
