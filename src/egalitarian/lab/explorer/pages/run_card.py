"""One run on the page: what it does, and what may be asked of it."""

from __future__ import annotations

from typing import Any

from nicegui import html, ui

from egalitarian.lab.config import PolarSettings
from egalitarian.lab.explorer.pages.parts import text
from egalitarian.lab.explorer.session import WatchedRuns
from egalitarian.lab.explorer.watched import Watched

STATES = {
    "waiting": "waits for the others", "starting": "starting", "running": "training", "paused": "paused",
    "stopping": "stopping after this epoch", "finished": "finished", "stopped": "stopped", "failed": "failed",
    "killed": "killed",
}  # fmt: skip
"""In words."""


class RunCard:
    """A run's state in words, and its buttons. The elements stay, so that the keyboard's focus does."""

    def __init__(self, run: Watched, session: WatchedRuns) -> None:
        self._run, self._session = run, session
        self._stated: tuple[Any, ...] = ()
        request = run.request
        with html.section().classes("panel run") as self._card:
            text("h3", f"{run.title}, {request.loaded.name}, seed {request.seeds[0]}")
            if request.values:
                text("p", ", ".join(f"{key}={value}" for key, value in request.values.items())).classes("soft")
            self._state = text("p", "").classes("state").props("role=status")
            self._numbers = text("p", "").classes("state")
            self._how = text("p", "").classes("how soft")
            with html.div().classes("row-of no-print"):
                self._pause = self._button("Pause", self._toggle)
                self._stop = self._button("Stop", run.stop)
                self._again = self._button("Start again", lambda: session.again(run))
                self._remove = self._button("Remove from the page", lambda: session.remove(run))
            self._add_changes()
        self.update()

    @staticmethod
    def _button(text: str, action: Any) -> Any:
        return (
            ui.button(text, on_click=action, color=None)
            .classes("side-button")
            .props("flat no-caps dense padding='4px 12px'")
        )

    def _add_changes(self) -> None:
        method = self._run.method
        own = method.hidden or method.optim
        with html.details().classes("no-print") as self._changes:
            text("summary", "Change settings on the way")
            text("p", "From the next epoch on. The run so far is stored as it is; what follows is a recording.").classes(
                "soft"
            )
            with html.div().classes("fields"):
                self._lr = ui.number("Learning rate", value=own.lr, format="%.6g")
                self._decay = ui.number("Weight decay of the matrices", value=own.weight_decay, format="%.6g")
                self._egd = ui.switch("EGD", value=_has_egd(method))
            self._button("Apply", self._apply)
            self._alert = text("p", "").classes("alert").props("role=alert")

    def _apply(self) -> None:
        method = self._run.method
        values: dict[str, Any] = {}
        for part, own in (("optim", method.optim), ("hidden", method.hidden)):
            if own is not None and self._lr.value != own.lr:
                values[f"{part}.lr"] = self._lr.value
        part = "optim" if method.hidden is None else "hidden"
        if self._decay.value != (method.hidden or method.optim).weight_decay:
            values[f"{part}.weight_decay"] = self._decay.value
        if self._egd.value != _has_egd(method):
            values["transform"] = [{"name": "polar"}] if self._egd.value else []
            values |= {} if self._egd.value else {"until": None}  # without a transform there is nothing to switch off
        try:
            self._run.change(values)
            self._alert.set_text("")
        except ValueError as error:
            self._alert.set_text(str(error))

    def _toggle(self) -> None:
        if self._run.state == "paused":
            self._run.go_on()
        else:
            self._run.pause()

    # what changes

    def colour(self, colour: str) -> None:
        """The colour of the run's lines."""
        self._card.style(f"border-left-color: {colour}")

    def delete(self) -> None:
        self._card.delete()

    def restated(self) -> bool:
        """Whether something changed since the last call that the accuracies' chart shows apart from its points."""
        run = self._run
        stated = (run.threshold, run.recording, len(run.changes))
        before, self._stated = self._stated, stated
        return before != stated

    def update(self) -> None:
        """Shows the run as it is. What is as before is not sent."""
        run = self._run
        kind = "a recording, " if run.recording else ""
        self._state.set_text(f"{kind}{STATES[run.state]}".capitalize() + ".")
        self._numbers.set_text(_numbers(run))
        where = f"Recording: {run.recording}." if run.recording else ""
        self._how.set_text(" ".join(filter(None, (run.text, where))))
        self._pause.set_text("Continue" if run.state == "paused" else "Pause")
        self._pause.set_visibility(run.state in ("running", "paused"))
        self._stop.set_text("Stop at once" if run.state == "stopping" else "Stop")
        self._stop.set_visibility(not run.ended)
        self._again.set_visibility(run.state in ("stopped", "failed", "killed"))
        self._remove.set_visibility(run.ended)
        self._changes.set_visibility(run.state in ("running", "paused"))


def _has_egd(method: Any) -> bool:
    return any(isinstance(link, PolarSettings) for link in method.transform)


def _numbers(run: Watched) -> str:
    if not run.curve.points:
        return "No epoch yet."
    epoch, train, test = run.curve.points[-1]
    shares = ", ".join(
        f"{part} {'not a number' if value is None else f'{value:.1%}'}"
        for part, value in (("train", train), ("test", test))
    )
    return f"Epoch {epoch} of at most {run.budget}: {shares}"
