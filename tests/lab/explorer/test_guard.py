"""Who is let in, as a pure function, and what a refusal looks like. tests/browser asks a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egalitarian.lab.explorer.guard import Guard, hosts_of, refusal

TOKEN, PORT = "a-token_of-letters", 8123
OWN = {"host": f"127.0.0.1:{PORT}"}


def asked(path: str, headers: dict[str, str] | list[tuple[str, str]]) -> str:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return refusal(path, [(name.encode(), value.encode("latin-1")) for name, value in pairs], TOKEN, PORT)


@pytest.mark.parametrize("path", [f"/{TOKEN}", f"/{TOKEN}/", f"/{TOKEN}/toy", f"/{TOKEN}/_nicegui_ws/socket.io/"])
@pytest.mark.parametrize("host", hosts_of(PORT))
def test_the_token_on_this_machine_is_let_in(path: str, host: str) -> None:
    assert asked(path, {"host": host}) == ""
    assert asked(path, {"Host": host.upper(), "Origin": f"http://{host}"}) == ""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//",
        f"//{TOKEN}/",
        f"/x/{TOKEN}/",
        f"/{TOKEN[:-1]}/",
        f"/{TOKEN}x/",
        f"/{TOKEN.upper()}/",
        "/\udcff/",
        "/ü/",
    ],
)
def test_no_token_or_another_is_refused(path: str) -> None:
    assert "the address must have the token" in asked(path, OWN)
    assert TOKEN not in asked(path, OWN)


HOSTS: list[list[tuple[str, str]]] = [
    [],
    [("host", "")],
    [("host", "127.0.0.1")],
    [("host", "evil.example")],
    [("host", f"evil.example:{PORT}")],
    [("host", f"127.0.0.1:{PORT}"), ("host", "evil.example")],
    [("host", f"127.0.0.1:{PORT}.")],
    [("host", f"127.0.0.1:{PORT}1")],
    [("host", f"0.0.0.0:{PORT}")],
]


@pytest.mark.parametrize("headers", HOSTS, ids=str)
def test_another_host_is_refused(headers: list[tuple[str, str]]) -> None:
    assert asked(f"/{TOKEN}/", headers).startswith("Host must be 127.0.0.1:8123 or localhost:8123, got ")


@pytest.mark.parametrize(
    "origin",
    ["", "null", "http://evil.example", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1", f"http://localhost:{PORT}"],
)
def test_another_origin_is_refused(origin: str) -> None:
    assert asked(f"/{TOKEN}/", {**OWN, "origin": origin}).startswith("Origin must be the explorer itself")


def answered(kind: str, headers: dict[str, str]) -> tuple[list[Any], bool]:
    """What the guard sends, and whether the app behind it was called."""
    sent: list[Any] = []
    called = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal called
        called = True
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": kind,
        "path": f"/{TOKEN}/",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Guard(app, TOKEN, PORT)(scope, receive, send))
    return sent, called


@pytest.mark.parametrize(("kind", "answer"), [("http", "http.response.start"), ("websocket", "websocket.close")])
def test_a_refusal_never_reaches_the_app(kind: str, answer: str) -> None:
    sent, called = answered(kind, {"host": "evil.example"})
    assert not called
    assert sent[0]["type"] == answer
    assert sent[0].get("status", 403) == 403


def test_every_answer_forbids_frames_and_other_hosts() -> None:
    for headers in (OWN, {"host": "evil.example"}):
        (start, *_), _ = answered("http", headers)
        found = dict(start["headers"])
        assert found[b"referrer-policy"] == b"no-referrer"
        assert b"default-src 'self'" in found[b"content-security-policy"]


def test_the_servers_own_start_is_let_through() -> None:
    assert answered("lifespan", {})[1]
