"""The errata as a part of a page: `docs/errata.md`, which the wheel carries as `errata.md` in this room."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from egalitarian.lab.analysis import ERRATA, anchor

PREFIX = "errata-"
"""How the anchors of headings begin on the page."""
HERE = Path(__file__).parent / "errata.md"
CHECKOUT = Path(__file__).parents[4] / ERRATA


def load_errata() -> str:
    """The text of the errata: of the wheel, or of the checkout that this file is in."""
    return (HERE if HERE.exists() else CHECKOUT).read_text(encoding="utf-8")


def errata_html(text: str) -> str:
    """Markdown as HTML below a heading of level 2, without its title. Links to other files become plain text."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text.split("\n", 1)[1] if text.startswith("# ") else text)
    for index, token in enumerate(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
        if token.type == "heading_open":
            token.attrSet("id", PREFIX + anchor(_plain(tokens[index + 1])))
        if token.type == "inline":
            token.children = _without_outer_links(token.children or [])
    html = parser.renderer.render(tokens, parser.options, {})
    places = count(1)
    opening = '<div class="wide" tabindex="0" role="region" aria-label="errata, table {}"><table>'
    html = re.sub("<table>", lambda _: opening.format(next(places)), html).replace("</table>", "</table></div>")
    return html.replace("<pre>", '<pre tabindex="0">').replace("<th></th>", "<td></td>")


def _plain(inline: Token) -> str:
    return "".join(child.content for child in inline.children or [])


def _without_outer_links(children: Sequence[Token]) -> list[Token]:
    """Links to headings of the errata stay within the page, those of the web stay; what they say of other files stays."""
    kept: list[Token] = []
    dropped = 0
    for token in children:
        target: Any = token.attrGet("href") if token.type == "link_open" else None
        if isinstance(target, str) and target.startswith("#"):
            token.attrSet("href", f"#{PREFIX}{target[1:]}")
        elif isinstance(target, str) and not target.startswith("https://"):
            dropped += 1
            continue
        if token.type == "link_close" and dropped:
            dropped -= 1
            continue
        kept.append(token)
    return kept


def prose(text: str) -> str:
    """A sentence as HTML: `code` and names of errata become elements, everything else is shown as it is."""
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    named = re.sub(rf"{re.escape(ERRATA)}#([\w-]+)", rf'<a href="#{PREFIX}\1">errata: \1</a>', safe)
    return re.sub(rf"{re.escape(ERRATA)}(?!#)", '<a href="#errata">the errata</a>', named)
