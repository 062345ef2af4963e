"""Messages: a trainer never waits for the page, and what must arrive does."""

from __future__ import annotations

import io
import math
import os
import threading
import time
from typing import Any

from egalitarian.lab.explorer.messages import MOST_PENDING, Outlet, Trace, as_bytes, read_messages


class Slow(io.RawIOBase):
    """A page that does not read until it is told to."""

    def __init__(self) -> None:
        self.reads, self.written = threading.Event(), b""

    def write(self, data: Any) -> int:
        self.reads.wait(20)
        self.written += bytes(data)
        return len(data)

    def messages(self) -> list[dict[str, Any]]:
        return list(read_messages(self.written.splitlines(keepends=True)))


def test_messages_are_lines_and_a_cut_one_is_left_out() -> None:
    sent = [{"kind": "note", "text": "a\nb"}, {"kind": "epochs", "points": [(0, 0.5, math.nan)]}]
    content = b"".join(map(as_bytes, sent))
    assert content.count(b"\n") == 2
    expected = [sent[0], {"kind": "epochs", "points": [[0, 0.5, None]]}]
    assert list(read_messages((content + b'{"kind": "no').splitlines(keepends=True))) == expected


def test_a_page_that_does_not_read_never_holds_the_trainer_up() -> None:
    slow: Any = Slow()
    outlet = Outlet(slow)
    outlet.send("note", text="first")
    began = time.monotonic()
    for epoch in range(20 * MOST_PENDING):
        outlet.add_point((epoch, 0.5, 0.5))
        outlet.offer(epoch=epoch)
    outlet.send("ends", text="last")
    assert time.monotonic() - began < 5
    slow.reads.set()
    outlet.close()
    messages = slow.messages()
    assert [message["kind"] for message in messages if message["kind"] in ("note", "ends")] == ["note", "ends"]
    points = [point[0] for message in messages if message["kind"] == "epochs" for point in message["points"]]
    assert points == sorted(points)
    assert points[-1] == 20 * MOST_PENDING - 1
    assert len(points) <= 3 * MOST_PENDING
    measures = [message["epoch"] for message in messages if message["kind"] == "measures"]
    assert len(measures) < 10
    assert measures[-1] == 20 * MOST_PENDING - 1


def test_points_arrive_before_the_message_that_follows_them() -> None:
    slow: Any = Slow()
    outlet = Outlet(slow)
    outlet.add_point((0, 0.1, 0.2))
    outlet.send("state", state="paused")
    outlet.add_point((1, 0.1, 0.2))
    outlet.send("ends", text="")
    slow.reads.set()
    outlet.close()
    assert [message["kind"] for message in slow.messages()] == ["epochs", "state", "epochs", "ends"]


def test_a_page_that_is_gone_does_not_disturb_the_trainer() -> None:
    read, write = os.pipe()
    file = os.fdopen(write, "wb", buffering=0)
    outlet = Outlet(file)
    os.close(read)
    for epoch in range(100):
        outlet.send("note", text="x" * 10_000)
        outlet.add_point((epoch, 0.5, 0.5))
    outlet.close()
    file.close()


def test_a_trace_keeps_few_points_and_the_newest() -> None:
    trace = Trace()
    for epoch in range(20_000):
        trace.add((epoch, 0.1, epoch / 20_000))
    epochs = [point[0] for point in trace.points]
    assert epochs[:100] == list(range(100))
    assert epochs[-1] == 19_999
    assert len(epochs) < 100 + 100 * math.log10(200) + 2
    assert epochs == sorted(set(epochs))


def test_an_epoch_that_is_trained_again_replaces_what_followed() -> None:
    trace = Trace()
    for epoch in (0, 1, 2, 3, 4):
        trace.add((epoch, 0.1, 0.1))
    trace.add((2, 0.9, 0.9))
    assert trace.points == [(0, 0.1, 0.1), (1, 0.1, 0.1), (2, 0.9, 0.9)]
