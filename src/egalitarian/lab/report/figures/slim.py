"""Figures' files made small enough to be committed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from PIL import Image

COLOURS = 256
"""Of a PNG's palette: figures have few colours, and shades of them at the edges of lines."""


def slim(path: Path) -> None:
    """The same picture in fewer bytes, in place: PNG or SVG."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    else:
        path.write_text(slim_svg(path.read_text(encoding="utf-8")), encoding="utf-8")


def slim_svg(text: str) -> str:
    """Coordinates to a hundredth of a point, short ids and no unused ones, no comments, indentation, repeated styles."""
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_rounded(" ".join(found[1].split()))}"', text)
    text = re.sub(r' [xy]="[^"]*"|translate\([^)]*\)', lambda found: _rounded(found[0]), text)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    styles = dict(re.findall(r'<path id="([^"]*)"[^>]*? style="([^"]*)"', text))
    text = re.sub(
        r'(<use [^>]*?href="#([^"]*)"[^>]*?) style="([^"]*)"',
        lambda found: found[1] if styles.get(found[2]) == found[3] else found[0],
        text,
    )
    short = {name: f"i{place}" for place, name in enumerate(sorted(used))}
    return _without_bare_groups(_renamed(re.sub(r"\n\s*", "\n", text), short.__getitem__))


def _renamed(text: str, rename: Callable[[str], str]) -> str:
    """All ids, where they are given and where they are used."""
    return re.sub(r'( id="|url\(#|href="#)([^")]+)', lambda found: found[1] + rename(found[2]), text)


def _rounded(numbers: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), numbers)


def _without_bare_groups(text: str) -> str:
    """Groups without any attribute mean nothing."""
    lines, bare = [], []
    for line in text.split("\n"):
        if line == "<g/>":
            continue
        if line.startswith("<g") and not line.endswith("/>"):
            bare.append(line == "<g>")
        if line == "<g>" or (line == "</g>" and bare.pop()):
            continue
        lines.append(line)
    return "\n".join(lines)
