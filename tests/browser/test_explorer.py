"""`egalitarian explore` in a real browser, with a real server and real trainers."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from playwright.sync_api import expect

from egalitarian.lab.runs import Store, StoreError, open_source

Open = Callable[..., Any]
Keep = Callable[[Any, str], None]
SMALL = "task.modulus=13\nmodel.width=32\ntraining.batch=32\nmeasure.threshold=1"
"""Epochs of a few milliseconds, up to the end of the budget."""
MINUTE = 60_000


class Served(NamedTuple):
    address: str
    process: subprocess.Popen[bytes]
    runs: Path
    printed: Path

    @property
    def root(self) -> str:
        return "/".join(self.address.split("/")[:3])

    @property
    def port(self) -> int:
        return int(self.root.rpartition(":")[2])

    @property
    def token(self) -> str:
        return self.address.split("/")[3]

    def trainers(self) -> list[int]:
        """Processes that the server has started."""
        return children(self.process.pid)


def children(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = [line.split() for line in listed]
    return [int(pid) for pid, above, state in rows if int(above) == parent and not state.startswith("Z")]


def start(runs: Path) -> Served:
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [sys.executable, "-m", "egalitarian", "explore", "--no-browser", "--device", "cpu", "--runs", str(runs)]
    printed = runs.with_name("printed")
    with printed.open("wb") as file:  # not a pipe, which blocks when it is full
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=runs.parent)
    deadline = time.monotonic() + 60
    while not (found := re.search(r"(http://\S+)\s", printed.read_text())):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(printed.read_text())
        time.sleep(0.05)
    return Served(found[1], process, runs, printed)


def end(served: Served) -> str:
    """Ends the server if it is there, and returns what it printed."""
    if served.process.poll() is None:
        served.process.send_signal(signal.SIGINT)
    try:
        served.process.wait(20)
    except subprocess.TimeoutExpired:
        served.process.kill()
        raise
    return served.printed.read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that all tests share. Each trains seeds of its own."""
    folder = tmp_path_factory.mktemp("served")
    one = start(folder / "runs")
    yield one
    printed = end(one)
    assert "Traceback" not in printed, printed
    assert {path.name for path in folder.iterdir()} <= {"printed", "runs"}


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[Served]:
    """A server that a test ends."""
    one = start(tmp_path / "runs")
    yield one
    end(one)


@pytest.fixture
def clear(served: Served, opened: Open) -> Iterator[None]:
    """Nothing trains after a test."""
    yield
    for pid in served.trainers():
        os.kill(pid, signal.SIGKILL)
    with opened(served.address) as shown:
        shown.page.wait_for_timeout(1000)  # until the cards are there, and the killed are reported
        remove = shown.page.get_by_role("button", name="Remove from the page")
        for left in range(shown.page.locator(".run").count(), 0, -1):
            remove.first.click()
            expect(shown.page.locator(".run")).to_have_count(left - 1)


def stored(served: Served, seed: int) -> dict[str, int]:
    """By method: how many epochs are stored."""
    runs = (run for run in Store(served.runs).all() if run.spec["seed"] == seed)
    return {run.folder.parent.name: len(run.epochs()) for run in runs}


def begin(
    page: Any, seed: int = 0, *, settings: str = SMALL, epochs: int = 100_000, methods: tuple[str, ...] = ("SGD", "EGD")
) -> None:
    """Fills the form and starts."""
    page.get_by_label("Seed").fill(str(seed))
    page.get_by_label("Settings", exact=True).fill(settings)
    page.get_by_label("Most epochs").fill(str(epochs))
    for name in {"SGD", "EGD"} - set(methods):
        page.locator(".q-chip", has_text=name).get_by_role("button").click()
    page.get_by_role("button", name="Start", exact=True).click()


def card(page: Any, method: str) -> Any:
    return page.locator(".run", has=page.get_by_role("heading", name=re.compile(f"^{method}, ")))


def wait_for_epoch(page: Any, method: str, least: int = 20) -> None:
    pattern = re.compile(r"Epoch (\d+) of")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = pattern.search(card(page, method).inner_text())
        if found and int(found[1]) >= least:
            return
        page.wait_for_timeout(100)
    raise AssertionError(card(page, method).inner_text())


SERIES = """(at) => { const id = document.querySelectorAll('.nicegui-echart')[at].id.slice(1);
  const chart = Vue.toRaw(getElement(id).chart);
  return chart.getOption().series.map(each => ({name: each.name, points: each.data.length})); }"""


def points(page: Any, chart: int = 0) -> dict[str, int]:
    """Of each line of a chart."""
    return {each["name"]: each["points"] for each in page.evaluate(SERIES, chart)}


# who may come in


def status_of(served: Served, path: str, *, socket: bool = False, **headers: str) -> int:
    """Of a request with these headers alone; as a websocket it is 101 if it was let in."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    for name, value in {"Host": f"127.0.0.1:{served.port}", **(upgrade if socket else {}), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


WAYS_IN = {
    "page": ("", False),
    "toy": ("toy", False),
    "script": ("_nicegui/3.18.0/static/nicegui.js", False),
    "polling": ("_nicegui_ws/socket.io/?EIO=4&transport=polling", False),
    "websocket": ("_nicegui_ws/socket.io/?EIO=4&transport=websocket", True),
}
"""The end of an address, and whether it is one of a websocket."""
ways_in = pytest.mark.parametrize(("end_of", "socket"), WAYS_IN.values(), ids=WAYS_IN.keys())


@ways_in
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_printed_address_is_let_in(served: Served, end_of: str, socket: bool, name: str) -> None:
    path, host = f"/{served.token}/{end_of}", f"{name}:{served.port}"
    expected = 101 if socket else 200
    assert status_of(served, path, socket=socket, Host=host) == expected
    assert status_of(served, path, socket=socket, Host=host, Origin=f"http://{host}") == expected


@ways_in
def test_a_missing_or_wrong_token_is_refused(served: Served, end_of: str, socket: bool) -> None:
    token = served.token
    for wrong in ("", "/wrong", "/%00", "/..", f"/{token[:-1]}", f"/{token}x", f"/{token.swapcase()}", f"//{token}"):
        assert status_of(served, f"{wrong}/{end_of}", socket=socket) == 403, wrong
    assert status_of(served, f"/?token={token}", socket=socket) == 403


@ways_in
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "[::1]:{port}"],
)
def test_another_host_is_refused(served: Served, end_of: str, socket: bool, host: str) -> None:
    """A site that points its own name at this machine sends its own name (DNS rebinding)."""
    path = f"/{served.token}/{end_of}"
    assert status_of(served, path, socket=socket, Host=host.format(port=served.port)) == 403


@ways_in
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://localhost:{port}", ""],
)
def test_another_origin_is_refused(served: Served, end_of: str, socket: bool, origin: str) -> None:
    path = f"/{served.token}/{end_of}"
    assert status_of(served, path, socket=socket, Origin=origin.format(port=served.port)) == 403


def test_only_this_machine_can_reach_it(served: Served) -> None:
    port = served.port
    listed = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    listening = [line.split()[1] for line in listed if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")]
    assert listening == [f"0100007F:{port:04X}"]


def test_no_cookie_is_set_and_nothing_leaks_the_address(served: Served) -> None:
    answer = httpx.get(served.address)
    assert "set-cookie" not in answer.headers
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert served.token not in httpx.get(f"{served.root}/wrong/").text


# the toy problem


@pytest.mark.parametrize("size", ["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_toy_problem_is_accessible(served: Served, opened: Open, keep_screenshot: Keep, size: str, scheme: str) -> None:
    with opened(f"{served.address}toy", size=size, scheme=scheme) as shown:
        shown.page.wait_for_timeout(800)
        assert not shown.scrolls_sideways()
        assert shown.violations() == []
        keep_screenshot(shown.page, f"explore-toy-{size}-{scheme}")


WATCH = """() => { const chart = Vue.toRaw(getElement(document.querySelector('.nicegui-echart').id.slice(1)).chart);
  const set = chart.setOption.bind(chart); window.redrawn = [];
  chart.setOption = (...all) => { set(...all); window.redrawn.push(performance.now()); }; }"""


LISTEN = """() => { window.redrawn = [];
  addEventListener('keydown', () => window.pressed = performance.now(), {once: true}); }"""


def test_the_toy_problem_follows_its_sliders_within_100_ms(served: Served, opened: Open) -> None:
    with opened(f"{served.address}toy") as shown:
        page = shown.page
        page.wait_for_timeout(800)
        before = page.get_by_role("status").inner_text()
        page.evaluate(WATCH)
        took = []
        for knob in ("Variance", "Angle", "Half-margin", "Step size", "Size of the start"):
            slider = page.get_by_role("slider", name=re.compile(knob))
            for key in ("ArrowLeft", "ArrowLeft", "ArrowRight"):
                slider.focus()
                page.evaluate(LISTEN)
                page.keyboard.press(key)
                page.wait_for_function("window.redrawn.length > 0")
                took.append(page.evaluate("window.redrawn[0] - window.pressed"))
                page.wait_for_timeout(120)
        assert sorted(took)[len(took) // 4] < 100, took  # the rest may be those of a busy machine
        assert page.get_by_role("status").inner_text() != before


def test_a_setting_that_diverges_is_a_message(served: Served, opened: Open, keep_screenshot: Keep) -> None:
    with opened(f"{served.address}toy") as shown:
        page = shown.page
        page.get_by_role("slider", name=re.compile("Half-margin")).focus()
        page.keyboard.press("End")
        page.get_by_role("slider", name=re.compile("Step size")).focus()
        page.keyboard.press("End")
        expect(page.get_by_role("alert")).to_contain_text("eta must be in (0,")
        keep_screenshot(page, "explore-toy-error")
        page.keyboard.press("Home")
        expect(page.get_by_role("alert")).to_have_text("")


# training


@pytest.mark.parametrize("size", ["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_empty_page_is_accessible(served: Served, opened: Open, keep_screenshot: Keep, size: str, scheme: str) -> None:
    with opened(served.address, size=size, scheme=scheme) as shown:
        shown.page.wait_for_timeout(800)
        assert not shown.scrolls_sideways()
        assert shown.violations() == []
        keep_screenshot(shown.page, f"explore-empty-{size}-{scheme}")


@pytest.mark.usefixtures("clear")
def test_methods_are_compared_live_and_stored(served: Served, opened: Open, keep_screenshot: Keep) -> None:
    with opened(served.address) as shown:
        page = shown.page
        begin(page, 1, epochs=1500)
        for method in ("SGD", "EGD"):
            wait_for_epoch(page, method)
        first = points(page)
        assert set(first) == {"SGD, test", "SGD, train", "EGD, test", "EGD, train"}
        page.wait_for_timeout(2500)
        assert all(points(page)[name] > count for name, count in first.items())
        assert [set(points(page, chart)) for chart in (1, 2, 3)] == [{"SGD", "EGD"}] * 3
        assert all(count > 1 for chart in (1, 2, 3) for count in points(page, chart).values())
        assert shown.violations() == []
        keep_screenshot(page, "explore-compare-wide-light")
        with opened(served.address, size="narrow", scheme="dark") as second:  # another tab sees the same
            second.page.wait_for_timeout(1500)
            assert set(points(second.page)) == set(first)
            assert not second.scrolls_sideways()
            assert second.violations() == []
            keep_screenshot(second.page, "explore-compare-narrow-dark")
        for method in ("SGD", "EGD"):
            expect(card(page, method)).to_contain_text("Finished.", timeout=MINUTE)
        keep_screenshot(page, "explore-finished-wide-light")
        page.reload()  # all is over before this page loads
        page.wait_for_timeout(1500)
        assert set(points(page)) == set(first)
        expect(card(page, "EGD")).to_contain_text("Epoch 1499 of at most 1500")
    assert stored(served, 1) == {"egd": 1500, "sgd": 1500}


@pytest.mark.usefixtures("clear")
def test_accuracies_are_shown_about_twenty_times_a_second(served: Served, opened: Open) -> None:
    with opened(served.address) as shown:
        page = shown.page
        begin(page, 2, methods=("SGD",))
        wait_for_epoch(page, "SGD")
        page.evaluate(WATCH)
        page.wait_for_timeout(3000)
        assert page.evaluate("window.redrawn.length") >= 36  # of 60
        page.get_by_role("button", name="Stop", exact=True).click()


@pytest.mark.usefixtures("clear")
def test_pause_continue_stop_and_start_again(served: Served, opened: Open, keep_screenshot: Keep) -> None:
    with opened(served.address) as shown:
        page = shown.page
        begin(page, 3, methods=("EGD",))
        wait_for_epoch(page, "EGD")
        run = card(page, "EGD")
        run.get_by_role("button", name="Pause").click()
        expect(run).to_contain_text("Paused.")
        page.wait_for_timeout(600)
        before = points(page)
        numbers = run.inner_text()
        page.wait_for_timeout(1500)
        assert (points(page), run.inner_text()) == (before, numbers)
        keep_screenshot(page, "explore-paused")
        page.reload()
        expect(run).to_contain_text("Paused.")
        run.get_by_role("button", name="Continue").click()
        expect(run).to_contain_text("Training.")
        run.get_by_role("button", name="Stop", exact=True).click()
        expect(run).to_contain_text("Stopped.", timeout=MINUTE)
        stopped = stored(served, 3)["egd"]
        assert served.trainers() == []
        run.get_by_role("button", name="Start again").click()
        wait_for_epoch(page, "EGD", stopped + 20)


@pytest.mark.usefixtures("clear")
def test_changed_settings_make_a_recording_that_reports_refuse(served: Served, opened: Open, keep_screenshot: Keep) -> None:
    with opened(served.address) as shown:
        page = shown.page
        begin(page, 4, methods=("EGD",))
        wait_for_epoch(page, "EGD")
        run = card(page, "EGD")
        run.get_by_text("Change settings on the way").click()
        run.get_by_role("button", name="Apply").click()
        expect(run.get_by_role("alert")).to_contain_text("settings must differ")
        run.get_by_label("Learning rate").fill("-1")
        run.get_by_role("button", name="Apply").click()
        expect(run.get_by_role("alert")).to_contain_text("lr must be > 0, got -1")
        run.get_by_label("Learning rate").fill("0.5")
        run.get_by_role("button", name="Apply").click()
        expect(run).to_contain_text("A recording, training.")
        run.get_by_role("switch", name="EGD").click()
        run.get_by_role("button", name="Apply").click()
        page.wait_for_timeout(1500)
        keep_screenshot(page, "explore-recording")
        assert set(points(page)) == {"EGD (recording), test", "EGD (recording), train"}
        run.get_by_role("button", name="Stop", exact=True).click()
        expect(run).to_contain_text("A recording, stopped.", timeout=MINUTE)
    (recording,) = (served.runs / "recordings").glob("*.recording.jsonl")
    assert "change" in recording.read_text()
    assert stored(served, 4)["egd"] < len(recording.read_text().splitlines()) - 3
    with pytest.raises(StoreError, match="their settings changed"):
        open_source(served.runs / "recordings")


@pytest.mark.usefixtures("clear")
def test_a_killed_trainer_is_reported_with_the_way_out(served: Served, opened: Open, keep_screenshot: Keep) -> None:
    with opened(served.address) as shown:
        page = shown.page
        begin(page, 5, methods=("EGD",))
        wait_for_epoch(page, "EGD")
        (trainer,) = served.trainers()
        os.kill(trainer, signal.SIGKILL)
        run = card(page, "EGD")
        expect(run).to_contain_text("Killed.")
        expect(run).to_contain_text("was killed (SIGKILL)")
        expect(run).to_contain_text("start again to resume there")
        keep_screenshot(page, "explore-killed")
        run.get_by_role("button", name="Start again").click()
        wait_for_epoch(page, "EGD")
        run.get_by_role("button", name="Stop", exact=True).click()
        expect(run).to_contain_text("Stopped.", timeout=MINUTE)
        run.get_by_role("button", name="Remove from the page").click()
        expect(page.locator(".run")).to_have_count(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("task.modulus=1", "modulus must be >= 2, got 1"),
        ("optim.lr", "--set must be key=value, got 'optim.lr'"),
        ("optim.rate=1", "optim.rate must be a known setting"),
        ("<b>x</b>=1", "--set must begin with a part of an experiment, got '<b>x</b>'"),
    ],
)
def test_settings_that_are_not_allowed_are_the_labs_own_error(
    served: Served, opened: Open, settings: str, message: str
) -> None:
    with opened(served.address) as shown:
        begin(shown.page, settings=settings)
        expect(shown.page.get_by_role("alert").first).to_contain_text(message)
        assert shown.page.locator(".run").count() == 0


def test_the_form_is_reached_and_sent_by_keyboard(served: Served, opened: Open) -> None:
    with opened(served.address) as shown:
        page = shown.page
        page.get_by_label("Settings", exact=True).fill("optim.lr=-1")
        page.get_by_role("link", name="Toy problem").focus()
        focused = []
        while "Start" not in focused:
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.innerText || document.activeElement.ariaLabel || ''"))
            assert len(focused) < 15, focused
        page.wait_for_timeout(500)  # the ring grows
        assert "5px" in page.evaluate("getComputedStyle(document.activeElement).boxShadow")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").first).to_contain_text("lr must be > 0, got -1")


def test_an_experiment_that_is_not_there_is_a_message(served: Served, opened: Open) -> None:
    with opened(served.address) as shown:
        field = shown.page.get_by_label("Experiment")
        field.fill("nowhere.toml")
        field.press("Enter")
        expect(shown.page.get_by_role("alert").first).to_contain_text(
            "must be a name or an existing file, got nowhere.toml"
        )
        shown.page.get_by_role("button", name="Start", exact=True).click()
        expect(shown.page.get_by_role("alert").first).to_contain_text("methods must be at least one")


@pytest.mark.usefixtures("clear")
def test_what_fails_in_the_trainer_is_on_the_page(served: Served, opened: Open, keep_screenshot: Keep) -> None:
    with opened(served.address) as shown:
        begin(shown.page, 6, settings=f"{SMALL}\nmodel.width=999999999999", methods=("SGD",))
        run = card(shown.page, "SGD")
        expect(run).to_contain_text("Failed.", timeout=MINUTE)
        expect(run).to_contain_text("must train for one step")
        keep_screenshot(shown.page, "explore-failed")


@pytest.mark.usefixtures("clear")
def test_one_after_the_other(served: Served, opened: Open) -> None:
    with opened(served.address) as shown:
        page = shown.page
        page.get_by_role("checkbox", name="all at once").click()
        begin(page, 7, epochs=300)
        expect(card(page, "EGD")).to_contain_text("Waits for the others.")
        expect(card(page, "SGD")).to_contain_text("Finished.", timeout=MINUTE)
        expect(card(page, "EGD")).to_contain_text("Finished.", timeout=MINUTE)


# the end


def test_ctrl_c_ends_server_and_trainers_within_seconds(lost: Served, opened: Open) -> None:
    with opened(lost.address) as shown:
        begin(shown.page)
        for method in ("SGD", "EGD"):
            wait_for_epoch(shown.page, method)
        trainers = lost.trainers()
        assert len(trainers) == 2
        began = time.monotonic()
        printed = end(lost)
        assert time.monotonic() - began < 12  # 6 at most on a machine that is not busy
        assert lost.process.returncode == 0
        assert "Closed." in printed
        assert not any(Path(f"/proc/{pid}").exists() for pid in trainers)
        shown.errors.clear()  # the browser has lost its server
    assert all(len(run.epochs()) > 20 for run in Store(lost.runs).all())


def test_a_second_ctrl_c_is_no_error(lost: Served, opened: Open) -> None:
    with opened(lost.address) as shown:
        begin(shown.page, methods=("SGD",))
        wait_for_epoch(shown.page, "SGD")
        trainers = lost.trainers()
        lost.process.send_signal(signal.SIGINT)
        time.sleep(0.15)
        printed = end(lost)
        assert "Traceback" not in printed
        assert lost.process.returncode == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in trainers)
        shown.errors.clear()


def test_a_killed_server_leaves_no_trainer_behind(lost: Served, opened: Open) -> None:
    with opened(lost.address) as shown:
        begin(shown.page, methods=("SGD",))
        wait_for_epoch(shown.page, "SGD")
        (trainer,) = lost.trainers()
        lost.process.kill()
        deadline = time.monotonic() + 15
        while Path(f"/proc/{trainer}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{trainer}").exists()
        shown.errors.clear()
    (stored,) = Store(lost.runs).all()
    assert len(stored.epochs()) > 20


def test_a_port_that_is_taken_is_an_error(served: Served) -> None:
    port = str(served.port)
    done = subprocess.run(
        [sys.executable, "-m", "egalitarian", "explore", "--no-browser", "--port", port],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert f"--port must be free on this machine, got {port}" in done.stderr
