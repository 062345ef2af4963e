"""The toy problem's report: figures come out the same, say how they were made, and bad input is refused."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from egalitarian.lab.report import toy
from egalitarian.lab.report.figures import style
from egalitarian.lab.report.toy import ToyReport, draw_all, toy_report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ToyReport:
    return toy_report(None, tmp_path_factory.mktemp("toy") / "new" / "folder", quick=True)


@pytest.mark.parametrize("eps", [[], [0.1, 0.1], [0.1, 2.0], [0.0], [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01]])
def test_bad_curves_are_refused_before_any_work(eps: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="eps must be"):
        toy_report(eps, tmp_path, quick=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match="out must be a folder"):
        toy_report(None, tmp_path / "taken", quick=True)


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


def test_figures_name_the_settings_with_which_they_were_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
