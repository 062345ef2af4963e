"""The HTML page: whole, self-contained, below its limit whatever is stored, with the verdict at each cell."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_records import write_run

from egalitarian.lab.analysis import Gathered, RunSummary, band
from egalitarian.lab.analysis.reading import Platform
from egalitarian.lab.config import Experiment, catalog, is_kept
from egalitarian.lab.report import html as html_module
from egalitarian.lab.report import write_report
from egalitarian.lab.report.charts import CHARTS
from egalitarian.lab.report.commands import Commands
from egalitarian.lab.report.html import DETAILS, LIMIT
from egalitarian.lab.report.write import _Writing, contents_for
from egalitarian.lab.runs import Outcome, Store

METHODS, SEEDS, EPOCHS = 100, 8, 6000


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    VOID = ("meta", "br", "img", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    store = Store(folder / "runs")
    for seed in range(8):
        write_run(store, "addition-97", "egd", seed, 108 + 2 * seed)
        write_run(store, "addition-97", "sgd", seed, 200)
        write_run(store, "parity-4", "row-norm", seed, 60)
    report = write_report(store, folder / "out", ["addition-97", "parity-4"], html=True)
    assert report.complete
    return (folder / "out" / "index.html").read_text(encoding="utf-8")


def test_the_page_is_whole_and_holds_all_that_it_shows(page: str) -> None:
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert len(balance.ids) == len(set(balance.ids))
    kinds = {re.split(r"[:,;]", each)[0].rstrip("/") for each in balance.addresses if not each.startswith("#")}
    assert kinds <= {"data", "https"}, "pictures are in the page; links go to the web or within it"
    assert "{{" not in page.split("<script>")[0]
    assert 'lang="en"' in page
    assert "default-src 'none'" in page


def test_a_cell_has_the_colour_and_the_word_of_its_verdict_and_the_reason(page: str) -> None:
    (cell,) = re.findall(r'<td class="v inside">115 \(108–122\) (.*?)</td>', page)
    assert "✓" in cell
    assert "epochs: the paper has 116, we have 115 (108–122). inside the spread. distance +0.1" in cell
    assert '<td class="v outside">200 ' in page
    known = re.findall(r'<td class="v known">.*?</td>', page)
    assert any("known: see docs/errata.md#one-run-per-cell" in each for each in known)
    assert '<td class="v open">not run ' in page


def test_every_part_has_the_command_that_makes_it_again(page: str) -> None:
    figure = page[page.index("Figure 1. Modular addition</h3>") :]
    command = re.search(r"<code>(egalitarian [^<]*)</code></pre><button", figure)
    assert command is not None
    assert command[1] == "egalitarian run addition-97 -m sgd,egd\negalitarian report addition-97 parity-4 --html"
    assert page.count('class="copy"') > 10


def test_a_chart_that_fails_leaves_the_picture_without_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no <ink>")

    monkeypatch.setitem(CHARTS, "curves", broken)
    store = Store(tmp_path / "runs")
    write_run(store, "addition-97", "egd", 0, 20)
    report = write_report(store, tmp_path / "out", ["addition-97"], html=True)
    assert "the interactive figure-1-addition could not be made: ValueError: no <ink>" in report.errors
    text = (tmp_path / "out" / "index.html").read_text()
    assert "no &lt;ink&gt;" in text
    assert 'data-chart="figure-1-addition"' not in text
    assert "Figure 1. Modular addition. The caption says" in text


def crowd(experiment: Experiment) -> Gathered:
    """Every method of an experiment with `SEEDS` seeds of `EPOCHS` epochs; every line with another noise."""
    epochs = np.array([epoch for epoch in range(EPOCHS) if is_kept(epoch)])
    draw = np.random.default_rng(0)
    platform = Platform("a GPU", "cuda", 1, 8, 0, "2.13", "", "source", "2026-01-02", 2.0, 1.0, "exact")
    runs, readings = [], []
    for place, method in enumerate(experiment.methods):
        for seed in range(SEEDS):
            crossed = 100 + 50 * place + 7 * seed
            rise = 1 / (1 + ((crossed + 1) / (epochs + 1)) ** 3)
            noise = draw.normal(0, 0.02, (6, len(epochs)))
            curve = pd.DataFrame({
                "epoch": epochs,
                "train_accuracy": np.clip(rise * 1.5 + noise[0], 0, 1),
                "test_accuracy": np.clip(rise + noise[1], 0, 1),
                "test_loss": np.exp(noise[2]),
                "distance": 10 * np.log1p(epochs) + noise[3],
                "weight_norm": 30 + np.log1p(epochs) + noise[4],
                "sigma_max": 0.1 * np.exp(noise[5]),
                "sigma_min": 0.001 * np.exp(noise[0]),
            })  # fmt: skip
            outcome = Outcome(0.95, epochs=EPOCHS, crossed=crossed, test_accuracy=0.99, train_accuracy=1.0)
            runs.append(RunSummary(experiment.name, method, seed, f"{place}-{seed}", outcome, EPOCHS, platform=platform))
            readings.append(SimpleNamespace(curve=curve, snapshots=list))
    return Gathered((experiment,), True, tuple(runs), (), (), (), tuple(readings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def crowded() -> Gathered:
    plain = catalog.load("addition-97")
    methods = {f"m{place}": plain.methods["egd"].replace(title=f"method {place}") for place in range(METHODS)}
    return crowd(plain.replace(name="many", title="Many methods", methods=methods, claims={}))


def written(gathered: Gathered, out: Path) -> tuple[str, dict[str, Any]]:
    out.mkdir()
    _Writing(out, gathered, contents_for(gathered), Commands({"many": "many.toml"}, html=True), ()).write_all()
    text = (out / "index.html").read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    return text, json.loads(data[1])


def test_a_hundred_methods_of_eight_seeds_fit_and_keep_what_matters(crowded: Gathered, tmp_path: Path) -> None:
    text, data = written(crowded, tmp_path / "out")
    assert len(text.encode()) < LIMIT
    chart = data["figures"]["many-curves"]
    assert (len(chart["methods"]), chart["seeds"]) == (METHODS, list(range(SEEDS)))
    assert sum(method["on"] for method in chart["methods"]) <= 8, "those of the static figure are shown first"
    (line,) = [each for each in chart["panels"][0]["lines"] if each["m"] == 70 and each["r"] == "median"]
    epochs, found = data["arrays"][line["x"]], band(crowded, "many", "m70", "test_accuracy", hold=True)
    assert len(epochs) <= DETAILS[0].points + 4
    assert {found.epochs[0], found.epochs[-1]} <= set(epochs)
    middle = 100 + 50 * 70 + 7 * 3.5
    assert {found.epochs[found.epochs >= middle][0], found.epochs[found.epochs < middle][-1]} <= set(epochs)


def test_a_page_that_would_be_too_large_has_fewer_points_then_fewer_pictures(
    crowded: Gathered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_module, "LIMIT", 1_000_000)
    text, data = written(crowded, tmp_path / "out")
    assert len(text.encode()) < 1_000_000
    assert data["figures"]["many-curves"]["seeds"] == []
    assert "single seeds are left out, as the page would be too large" in text
    monkeypatch.setattr(html_module, "LIMIT", 1)
    text, _ = written(crowded, tmp_path / "least")
    assert "The picture is in figures/many-curves.png. With it, this page would be larger than it may be." in text
