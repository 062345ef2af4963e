"""The errata on the page: every heading, links within it, nothing that would be run or fetched."""

from __future__ import annotations

import re

from egalitarian.lab.report.errata import errata_html, load_errata, prose


def test_every_heading_has_its_anchor_and_every_link_a_target() -> None:
    html = errata_html(load_errata())
    ids = re.findall(r'id="([^"]+)"', html)
    assert "errata-one-run-per-cell" in ids
    assert len(ids) == len(set(ids)) == len(re.findall(r"^#{2,} ", load_errata(), re.MULTILINE))
    targets = re.findall(r'href="([^"]+)"', html)
    assert {each[1:] for each in targets if each.startswith("#")} <= set(ids)
    assert all(each.startswith(("#", "https://")) for each in targets), "files of the repository are not next to the page"
    assert "results/summary.csv" in html, "what a dropped link says stays"


def test_headings_are_below_that_of_the_page() -> None:
    html = errata_html("# Errata\n\n## One\n\n### Two\n")
    assert html == '<h3 id="errata-one">One</h3>\n<h4 id="errata-two">Two</h4>\n'


def test_markup_in_the_text_is_text() -> None:
    html = errata_html("# E\n\n<script>alert(1)</script> and <b>bold</b> and [x](javascript:alert(1))\n")
    assert "<script" not in html
    assert "<b>" not in html
    assert "href" not in html


def test_a_sentence_has_code_and_links_to_errata_and_no_other_markup() -> None:
    assert prose("a < b & `x` <script>") == "a &lt; b &amp; <code>x</code> &lt;script&gt;"
    linked = '<a href="#errata-row-norm">errata: row-norm</a>'
    assert prose("known: see docs/errata.md#row-norm (outside)") == f"known: see {linked} (outside)"
    assert prose("(docs/errata.md)") == '(<a href="#errata">the errata</a>)'
    assert prose('"><img src=x>') == "&quot;&gt;&lt;img src=x&gt;"
