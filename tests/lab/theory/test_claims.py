"""The claims: every corrected form within its standard error, every printed slip shown; settings, input, figures."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

import egalitarian.lab.theory as theory
from egalitarian.lab.report import toy
from egalitarian.lab.report.figures import style
from egalitarian.lab.report.toy import ToyReport, draw_all, toy_report
from egalitarian.lab.theory import claims_shift, claims_wedge
from egalitarian.lab.theory.claims import PARTS, ToyClaim, summarize, toy_claims
from egalitarian.lab.theory.problem import EqualProblem, ShiftedProblem, start_at
from egalitarian.lab.theory.settings import ClaimSettings, CloudSettings, CurveSettings, load, read

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
def report(tmp_path_factory: pytest.TempPathFactory) -> ToyReport:
    return toy_report(None, tmp_path_factory.mktemp("toy") / "new" / "folder", quick=True)


def test_theorem_1_over_the_full_grid() -> None:
    rows = list(claims_shift.theorem_rows(load(ClaimSettings)))
    assert len(rows) == 432
    assert [row for row in rows if not row.corrected_holds] == []
    above = [row for row in rows if "nu_k >= 0" in row.key]
    below = [row for row in rows if "nu_k < 0" in row.key]
    assert {row.verdict for row in above} == {"holds"}
    assert {row.verdict for row in below} == {"fails as printed"}
    assert any(0 < row.corrected < 1 for row in below)  # mu_k < 0 too: 'zero on the other side' would fail


def test_moments_over_the_full_grid() -> None:
    settings = replace(load(ClaimSettings), draws=load(ClaimSettings, quick=True).draws)
    rows = [row for row in claims_wedge.moment_rows(settings) if row.key.startswith("moment")]
    assert len(rows) == 6 * len(settings.eps) * (len(settings.theta) + len(settings.obtuse))
    assert [row for row in rows if not row.corrected_holds] == []
    wrong = {row.key for row in rows if row.verdict != "holds"}
    assert wrong == {"moment a", "moment d", "moment c1"}


def test_every_corrected_form_agrees_with_simulation(report: ToyReport) -> None:
    assert [row for row in report.claims if not row.corrected_holds] == []


def test_what_holds_and_what_fails(report: ToyReport) -> None:
    verdicts = {one.key: one.verdict for one in report.summary}
    assert {key for key, verdict in verdicts.items() if verdict == "holds"} == HOLD
    assert {key for key, verdict in verdicts.items() if verdict != "holds"} == FAIL


def test_claims_are_the_same_twice(report: ToyReport) -> None:
    again = list(claims_shift.theorem_rows(load(ClaimSettings, quick=True)))
    assert again == [row for row in report.claims if row.key.startswith("theorem-1")]


# the row itself


def row(printed: float, measured: float, **more: object) -> ToyClaim:
    plain = ToyClaim("key", "where", "claim", "setting", printed, 2.0, measured, standard_error=0.1, sigmas=4.0)
    return replace(plain, **more)  # type: ignore[arg-type]


def test_a_verdict_allows_noise_and_slack() -> None:
    assert row(1.0, 1.39).verdict == "holds"
    assert row(1.0, 1.41).verdict == "fails as printed"
    assert row(1.0, 1.41, slack=0.1).verdict == "holds"
    assert row(1.0, 0.2, relation="<").verdict == row(1.0, 1.8, relation=">").verdict == "holds"
    assert row(1.0, 1.8, relation="<").verdict == row(1.0, 0.2, relation=">").verdict == "fails as printed"
    assert row(math.nan, 1.0).verdict == row(math.inf, 1.0).verdict == "fails as printed"
    assert row(1.0, 2.3).corrected_holds
    assert not row(1.0, 2.5).corrected_holds


def test_a_summary_counts_and_names_the_worst() -> None:
    (summary,) = summarize([row(1.0, 1.1), row(1.0, 2.0), row(math.nan, 2.0), row(1.0, 1.2)])
    assert (summary.points, summary.printed_holds, summary.corrected_holds) == (4, 2, 2)
    assert summary.verdict == "fails as printed"
    assert math.isnan(summary.worst.printed)


# settings and input


def test_every_setting_has_a_source() -> None:
    for table in read().values():
        for entries in (table, table.get("quick", {})):
            values = [entry for key, entry in entries.items() if key != "quick"]
            assert all(set(entry) == {"value", "source"} and entry["source"] for entry in values)


def test_the_papers_own_settings_are_used() -> None:
    assert load(CloudSettings).eps == 0.1
    assert load(CloudSettings).theta == math.pi / 4
    assert load(CurveSettings, quick=True).seeds < load(CurveSettings).seeds


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ShiftedProblem(0.0, 1.0, 1.0, 0.1), r"eps must be in \(0, 1\], got 0.0; "),
        (lambda: ShiftedProblem(math.nan, 1.0, 1.0, 0.1), "eps must be"),
        (lambda: ShiftedProblem("0.1", 1.0, 1.0, 0.1), "eps must be"),
        (lambda: ShiftedProblem(0.1, math.pi / 2, 1.0, 0.1), r"theta must be in \(0, pi/2\), in radians, got 1.57"),
        (lambda: ShiftedProblem(0.1, 1.0, -0.1, 0.1), r"s must be in \[0, 30\], got -0.1; "),
        (lambda: ShiftedProblem(0.1, 1.0, 31.0, 0.1), "s must be"),
        (lambda: ShiftedProblem(0.1, 1.0, 1.0, 0.8), r"eta must be in \(0, 0.792\) for s = 1, got 0.8; lower it"),
        (lambda: EqualProblem(1.1, 1.0, 0.1), "eps must be"),
        (lambda: EqualProblem(0.1, math.pi, 0.1), r"theta must be in \(0, pi\)"),
        (lambda: EqualProblem(0.1, 1.0, 50.0), "eta must be in .*below 1/lambda_max"),
        (lambda: start_at(0.0), "zeta must be a finite number > 0, got 0.0; "),
        (lambda: start_at(math.inf), "zeta must be"),
        (lambda: start_at(1.0, math.nan), "angle must be"),
    ],
)
def test_bad_input_says_what_to_do(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert ShiftedProblem(1.0, 1.0, 0.0, 0.1).m2 == 1.0
    assert ShiftedProblem(1e-9, 1.0, 30.0, 1e-4).m1 > 30
    assert EqualProblem(1.0, math.pi / 2, 0.1).population().solution.shape == (2,)


@pytest.mark.parametrize("eps", [[], [0.1, 0.1], [0.1, 2.0], [0.0], [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01]])
def test_bad_curves_are_refused_before_any_work(eps: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="eps must be"):
        toy_report(eps, tmp_path, quick=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match="out must be a folder"):
        toy_report(None, tmp_path / "taken", quick=True)


# one claim alone


def test_one_claim_alone_has_the_same_rows_and_simulates_nothing_else(
    report: ToyReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toy_claims("polar order", quick=True) == [row for row in report.claims if row.key == "polar order"]
    for part, keys in list(PARTS.items()):
        if "polar order" not in keys:
            monkeypatch.delitem(PARTS, part)
    assert len(toy_claims("polar order", quick=True)) == 1
    with pytest.raises(ValueError, match="got 'phase'; they are polar order"):
        toy_claims("phase")


def test_every_part_says_which_claims_come_of_it(report: ToyReport) -> None:
    said = [key for keys in PARTS.values() for key in keys]
    assert len(said) == len(set(said))
    assert set(said) == {row.key for row in report.claims}


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


# figures


def test_figures_are_drawn_and_come_out_the_same(report: ToyReport, tmp_path: Path) -> None:
    names = {"toy-clouds", "toy-curves", "toy-equal", "toy-plateaus"}
    assert {file.stem for file in report.figures} == names
    assert {file.suffix for file in report.figures} == {".png", ".svg"}
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "another"}):  # the caller's taste changes nothing
        again = draw_all(tmp_path, quick=True)
    assert dict(matplotlib.rcParams) == before
    for first, second in zip(report.figures, again, strict=True):
        assert first.stat().st_size > 10_000
        assert first.read_bytes() == second.read_bytes(), first.name


def test_figures_say_with_what_they_were_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(toy, "save", lambda figure, path: [drawn.setdefault(path.name, figure) and path])
    draw_all(tmp_path, quick=True, eps=[0.1])
    said = {name: figure.get_suptitle() for name, figure in drawn.items()}
    for name, eta in (("toy-curves", "0.1"), ("toy-equal", "0.02"), ("toy-plateaus", "0.1")):
        assert rf"$\eta$ = {eta}, $w(0) = \zeta e_2$; $n$ = " in said[name]
        assert said[name].startswith(r"$\theta$ = ")
        assert ("$s$ = 1" in said[name]) == (name != "toy-equal"), "the appendix has no margin"
    corners = [axis.texts[0].get_text() for axis in drawn["toy-clouds"].axes]
    assert ["$s$ = 1" in corner for corner in corners] == [True, False]


def test_save_adds_its_own_suffixes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path must be without suffix"):
        style.save(Figure(), tmp_path / "figure.png")


def test_colours_are_the_palettes() -> None:
    assert set(style.CYCLE) <= set(style.OKABE_ITO.values())
    assert len(set(style.CYCLE)) == len(style.CYCLE)


def test_theory_needs_numpy_and_scipy_only_and_nothing_touches_pyplot() -> None:
    package = Path(theory.__file__).parent
    for file in [*package.glob("*.py"), *(package.parent / "report").glob("toy*.py"), Path(style.__file__)]:
        tree = ast.walk(ast.parse(file.read_text()))
        modules = {
            name
            for node in tree
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }
        assert not any("torch" in name or "pyplot" in name for name in modules), file
        assert file.parent != package or not any(name.startswith("matplotlib") for name in modules), file
