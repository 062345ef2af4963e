"""The page that trains: the form, the list of runs, and the charts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nicegui import html, ui

from egalitarian.lab.config import Experiment, SpecError, beyond, changed_values, load, names
from egalitarian.lab.explorer import charts
from egalitarian.lab.explorer.charts import Ink
from egalitarian.lab.explorer.pages.parts import ChartCard, Inks, frame, text
from egalitarian.lab.explorer.pages.run_card import RunCard
from egalitarian.lab.explorer.session import WatchedRuns
from egalitarian.lab.explorer.watched import Defaults, Watched
from egalitarian.lab.runs import Request

FASTEST = 1 / 20
"""Seconds between two updates of the accuracies."""
SLOWER = 0.25
"""Seconds between two updates of the texts."""
ABOUT = (
    "Pick an experiment and methods, and start. Each method trains in a process of its own and is stored like any other "
    "run, so that reports count it. A run whose settings change on the way becomes a recording, which reports refuse."
)
LOOK = {
    "accuracy": "Grokking is a late jump: training accuracy (dotted) is high long before test accuracy (solid) rises.",
    "spectrum": "A steep line means that a few directions get nearly all of the step. EGD gives all of them the same.",
    "fourier": "Modular tasks only. A network that has grokked keeps a few frequencies: look for a few tall bars.",
    "path": "How the weights move from their start, in the plane of the largest movement. Look for a turn at the jump.",
}
SETTINGS = 'hint="One key=value on a line, as after --set: task.modulus=59 or optim.lr=0.5" autogrow rows=1'


class TrainPage:
    """One visitor's page on the session that all visitors share."""

    def __init__(self, session: WatchedRuns, defaults: Defaults) -> None:
        self._session, self._defaults = session, defaults
        self._seen = -1
        self._versions: dict[int, int] = {}
        self._measured: tuple[int, ...] = ()
        self._cards: dict[int, RunCard] = {}
        self._texts_at = 0.0
        self._logarithmic = True
        with frame(""):
            text("p", ABOUT)
            self._add_form()
            self._accuracy = ChartCard("Accuracy", LOOK["accuracy"], self._accuracy_options, tall=True)
            with self._accuracy.panel:
                ui.switch("logarithmic epochs", value=True, on_change=self._set_axis).classes("no-print")
            with html.section().props('aria-label="Runs"'):
                self._list = html.div()
            with html.div().classes("charts"):
                self._measures = [
                    ChartCard(
                        "Singular values of the gradient", LOOK["spectrum"], lambda ink: charts.spectrum(self._runs, ink)
                    ),
                    ChartCard("Fourier power of the weights", LOOK["fourier"], lambda ink: charts.fourier(self._runs, ink)),
                    ChartCard(
                        "Path of the weights", LOOK["path"], lambda ink: charts.path(session.plane(), self._runs, ink)
                    ),
                ]
        self._inks = Inks(self._redraw)
        self._tick()  # the page comes with the runs on it
        ui.timer(FASTEST, self._tick)

    @property
    def _runs(self) -> list[Watched]:
        return list(self._session.runs)

    # the form

    def _add_form(self) -> None:
        experiments = [*names(), *beyond()]
        with html.section().classes("panel no-print"):
            text("h2", "New runs")
            with html.div().classes("fields"):
                self._experiment = ui.select(
                    experiments, value="addition-97", label="Experiment", with_input=True, new_value_mode="add-unique"
                ).props('hint="a name, or the path of a TOML file"')
                self._methods = ui.select([], multiple=True, label="Methods").props("use-chips")
                self._seed = ui.number("Seed", value=0, min=0, precision=0)
                self._epochs = ui.number("Most epochs", value=None, min=1, precision=0)
                self._epochs.props('hint="empty: those of the method"')
                self._settings = ui.textarea("Settings").classes("wide").props(SETTINGS)
            with html.div().classes("row-of"):
                ui.button("Start", on_click=self._start, color=None).classes("main-button").props("unelevated no-caps")
                self._together = ui.checkbox("all at once", value=True)
                text("span", "Otherwise one after the other; on a machine with few cores that is fairer.").classes("soft")
            self._alert = text("p", "").classes("alert").props("role=alert")
        self._experiment.on_value_change(lambda _: self._offer_methods())
        self._offer_methods()

    def _offer_methods(self) -> None:
        try:
            loaded = load(self._experiment.value or "addition-97")
        except (ValueError, OSError) as error:
            self._alert.set_text(str(error))
            self._methods.set_options({}, value=[])
            return
        self._alert.set_text("")
        options = {name: method.title for name, method in loaded.methods.items()}
        self._methods.set_options(options, value=_first_methods(loaded))

    def _start(self) -> None:
        try:
            self._session.start(self._requests(), together=bool(self._together.value))
            self._alert.set_text("")
        except (ValueError, OSError) as error:
            self._alert.set_text(str(error))

    def _requests(self) -> list[Request]:
        chosen = self._methods.value or []
        if self._experiment.value is None or not chosen:
            raise SpecError("methods must be at least one of an experiment, got none; choose some")
        lines = [line.strip() for line in (self._settings.value or "").splitlines() if line.strip()]
        values, defaults = changed_values(lines), self._defaults
        found = []
        for method in chosen:
            request = Request(
                self._experiment.value, method, (_whole("Seed", self._seed.value, 0),), defaults.device, defaults.threads,
                defaults.runs.absolute(), values=values, data=defaults.data,
                epochs=None if self._epochs.value is None else _whole("Most epochs", self._epochs.value, 1),
            )  # fmt: skip
            request.loaded.method(method)  # settings that are not allowed are an error here
            found.append(request)
        return found

    # what changes

    def _set_axis(self, event: Any) -> None:
        self._logarithmic = bool(event.value)
        self._accuracy.redraw(self._inks.now)

    def _accuracy_options(self, ink: Ink) -> charts.Options:
        return charts.accuracy(self._runs, ink, logarithmic=self._logarithmic)

    def _redraw(self) -> None:
        for panel in (self._accuracy, *self._measures):
            panel.redraw(self._inks.now)
        for run, colour in zip(self._runs, charts.colours_of(self._runs, self._inks.now), strict=True):
            if run.key in self._cards:
                self._cards[run.key].colour(colour)

    def _tick(self) -> None:
        """Shows what is new: accuracies at every call, texts and measures less often."""
        runs = self._runs
        if self._session.version != self._seen:
            self._seen = self._session.version
            self._arrange(runs)
        changed = [run for run in runs if self._versions.get(run.key) != run.version]
        self._versions = {run.key: run.version for run in runs}
        if any(self._cards[run.key].restated() for run in changed):
            self._accuracy.redraw(self._inks.now)  # thresholds, names and marks
        elif changed:
            self._accuracy.push({"series": [line for run in changed for line in charts.newest(run)]})
        if time.monotonic() - self._texts_at > SLOWER:
            self._texts_at = time.monotonic()
            for card in self._cards.values():
                card.update()
            self._show_measures(runs)

    def _show_measures(self, runs: Sequence[Watched]) -> None:
        measured = tuple(run.measured for run in runs)
        if measured != self._measured:
            self._measured = measured
            for panel in self._measures:
                panel.redraw(self._inks.now)

    def _arrange(self, runs: Sequence[Watched]) -> None:
        """Adds cards of new runs, and removes those of runs that are gone. The others stay, with the keyboard's focus."""
        known = {run.key for run in runs}
        for key in [key for key in self._cards if key not in known]:
            self._cards.pop(key).delete()
        for run in runs:
            if run.key not in self._cards:
                with self._list:
                    self._cards[run.key] = RunCard(run, self._session)
        self._redraw()


def _first_methods(loaded: Experiment) -> list[str]:
    """What the form proposes: the paper's plain optimizer and EGD, or the first two methods."""
    plain = [name for name in loaded.methods if not loaded.methods[name].transform]
    return [name for name in (*plain[:1], "egd") if name in loaded.methods] or list(loaded.methods)[:2]


def _whole(what: str, value: float | None, least: int) -> int:
    if value is None or value != int(value) or value < least:
        raise SpecError(f"{what} must be a whole number from {least}, got {value}; correct it")
    return int(value)
