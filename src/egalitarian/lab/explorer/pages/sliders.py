"""The page of the toy problem: sliders, and a chart that follows them."""

from __future__ import annotations

from typing import Any

from nicegui import html, ui

from egalitarian.lab.config import load_looks
from egalitarian.lab.explorer.charts import Ink, Options, data_alone, toy_errors
from egalitarian.lab.explorer.pages.parts import ChartCard, Inks, frame, text
from egalitarian.lab.explorer.toy import KNOBS, Knob, simulate

ABOUT = (
    "The toy problem of the paper's Section 3 has one fast and one slow feature. Its test error can stay at one for many "
    "steps: that is the plateau before grokking."
)
LOOK_FOR = (
    "Lines are the theorem, dots the mean of four simulated training samples, dashed lines the end of each plateau. Lower "
    "eps: the plateau of gradient descent (GD) grows, that of EGD stays. Dots end above zero: a sample is finite."
)
THROTTLE = 0.03
"""Seconds between two positions of a slider that are sent."""


class ToyPage:
    """One visitor's sliders."""

    def __init__(self) -> None:
        self._positions = {knob.name: knob.start for knob in KNOBS}
        self._lines = simulate(**self._values())
        with frame("toy"):
            text("p", ABOUT)
            with html.section().classes("panel"):
                text("h2", "Settings")
                for knob in KNOBS:
                    self._add(knob)
                self._error = text("p", "").classes("alert").props("role=alert")
                self._result = text("p", self._result_text()).classes("state").props("role=status")
            self._panel = ChartCard("Test error by step", LOOK_FOR, self._options, tall=True)
        self._inks = Inks(lambda: self._panel.redraw(self._inks.now))

    def _add(self, knob: Knob) -> None:
        with html.div().classes("knob"):
            text("span", knob.words).classes("words")
            slider = ui.element("input").props(
                f"type=range min={knob.low} max={knob.high} step={(knob.high - knob.low) / 100}"
            )
            slider.props(f'aria-label="{knob.words}"')
            slider.props["^value"] = knob.start  # the attribute: the property would be set back at every update
            shown = text("span", _shown(knob, knob.start)).classes("value")

            def follow(event: Any) -> None:
                self._positions[knob.name] = float(event.args)
                shown.set_text(_shown(knob, float(event.args)))
                self._compute()

            slider.on("input", follow, js_handler="event => emit(event.target.value)", throttle=THROTTLE)

    def _values(self) -> dict[str, float]:
        return {knob.name: knob.value(self._positions[knob.name]) for knob in KNOBS}

    def _compute(self) -> None:
        try:
            self._lines = simulate(**self._values())
        except ValueError as error:
            self._error.set_text(str(error))
            return
        self._error.set_text("")
        self._result.set_text(self._result_text())
        self._panel.push(data_alone(self._options(self._inks.now)))

    def _result_text(self) -> str:
        lengths = {name: f"{lines.plateau:.0f}" for name, lines in self._lines.items()}
        return f"Test error stays at one for {lengths['GD']} steps with GD, and for {lengths['EGD']} with EGD."

    def _options(self, ink: Ink) -> Options:
        colours = {name: load_looks().toy[name].colour for name in self._lines}
        return toy_errors(self._lines, colours, ink)


def _shown(knob: Knob, position: float) -> str:
    return f"{knob.value(position):.3g}"
