"""The claims: every corrected form is within its standard error, and every printed slip is shown."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import egalitarian.lab.theory as theory
from egalitarian.lab.report.figures import style
from egalitarian.lab.theory import claims_appendix, claims_section3
from egalitarian.lab.theory.claim import ToyClaim, summarize
from egalitarian.lab.theory.claims import PARTS, toy_claims
from egalitarian.lab.theory.settings import ClaimSettings, load_settings

HOLD = {
    "m1",
    "m2",
    "theorem-1 (nu_k >= 0)",
    "GD order",
    "EGD order",
    "EGD length (ours)",
    "moment Z",
    "moment b",
    "moment c2",
    "order of lambda_+ (acute)",
    "order of lambda_- (acute)",
    "order of lambda_- (obtuse)",
    "order of b (acute)",
    "fast mode (obtuse)",
    "slow direction (obtuse)",
    "M^k",
    "test error (nu_k >= 0)",
    "near start (ours)",
    "far start (ours)",
}


FAIL = {
    "m1 range",
    "step",
    "theorem-1 (nu_k < 0)",
    "r_k",
    "crossing",
    "late error",
    "w_ols spread",
    "memorised",
    "corollary A (u2 > 0)",
    "corollary A (u2 < 0)",
    "corollary B",
    "time to grok",
    "phase",
    "small-start order",
    "EGD and zeta",
    "polar order",
    "moment a",
    "moment d",
    "moment c1",
    "order of lambda_+ (obtuse)",
    "fast mode (acute)",
    "slow direction (acute)",
    "r_+ range",
    "path mu_k",
    "path nu_k",
    "test error (nu_k < 0)",
    "boxed bounds",
    "order of the plateau",
    "growth with the start",
    "memorised (appendix)",
}


@pytest.fixture(scope="module")
def rows() -> list[ToyClaim]:
    return toy_claims(quick=True)


def test_theorem_1_over_the_full_grid() -> None:
    rows = list(claims_section3.theorem_rows(load_settings(ClaimSettings)))
    assert len(rows) == 432
    assert [row for row in rows if not row.corrected_holds] == []
    above = [row for row in rows if "nu_k >= 0" in row.key]
    below = [row for row in rows if "nu_k < 0" in row.key]
    assert {row.verdict for row in above} == {"holds"}
    assert {row.verdict for row in below} == {"fails as printed"}
    assert any(0 < row.corrected < 1 for row in below)  # mu_k < 0 too: 'zero on the other side' would fail


def test_moments_over_the_full_grid() -> None:
    settings = replace(load_settings(ClaimSettings), draws=load_settings(ClaimSettings, quick=True).draws)
    rows = [row for row in claims_appendix.moment_rows(settings) if row.key.startswith("moment")]
    assert len(rows) == 6 * len(settings.eps) * (len(settings.theta) + len(settings.obtuse))
    assert [row for row in rows if not row.corrected_holds] == []
    wrong = {row.key for row in rows if row.verdict != "holds"}
    assert wrong == {"moment a", "moment d", "moment c1"}


def test_every_corrected_form_agrees_with_simulation(rows: list[ToyClaim]) -> None:
    assert [row for row in rows if not row.corrected_holds] == []


def test_what_holds_and_what_fails(rows: list[ToyClaim]) -> None:
    verdicts = {one.key: one.verdict for one in summarize(rows)}
    assert {key for key, verdict in verdicts.items() if verdict == "holds"} == HOLD
    assert {key for key, verdict in verdicts.items() if verdict != "holds"} == FAIL


def test_claims_are_the_same_twice(rows: list[ToyClaim]) -> None:
    again = list(claims_section3.theorem_rows(load_settings(ClaimSettings, quick=True)))
    assert again == [row for row in rows if row.key.startswith("theorem-1")]


def test_one_claim_alone_has_the_same_rows_and_simulates_nothing_else(
    rows: list[ToyClaim], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toy_claims("polar order", quick=True) == [row for row in rows if row.key == "polar order"]
    for part, keys in list(PARTS.items()):
        if "polar order" not in keys:
            monkeypatch.delitem(PARTS, part)
    assert len(toy_claims("polar order", quick=True)) == 1
    with pytest.raises(ValueError, match="got 'phase'; they are polar order"):
        toy_claims("phase")


def test_every_part_says_which_claims_come_of_it(rows: list[ToyClaim]) -> None:
    said = [key for keys in PARTS.values() for key in keys]
    assert len(said) == len(set(said))
    assert set(said) == {row.key for row in rows}


def test_a_claim_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'corollary B'"):
        toy_claims("corollary b")


def test_the_snippet_of_the_errata_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "errata.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert 'toy_claims("corollary B")' in snippet, "one claim, and not all of them"
    exec(snippet, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert all("key='corollary B'" in line for line in lines)


def test_theory_needs_numpy_and_scipy_only_and_nothing_touches_pyplot() -> None:
    package = Path(theory.__file__).parent
    for file in [*package.glob("*.py"), *(package.parent / "report").rglob("toy*.py"), Path(style.__file__)]:
        tree = ast.walk(ast.parse(file.read_text()))
        modules = {
            name
            for node in tree
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }
        assert not any("torch" in name or "pyplot" in name for name in modules), file
        assert file.parent != package or not any(name.startswith("matplotlib") for name in modules), file
