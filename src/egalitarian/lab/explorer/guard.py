"""Who may talk to the explorer: the browser that was given the printed address, and no page of another site.

The address has a random token in its path, so that every request has it: pages, files and the websocket. No cookie is set:
a browser would send it to other servers of this machine, too. The host must be this machine by name, which a site that
points its own name here (DNS rebinding) is not. An origin, where a browser sends one, must be the explorer itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "referrer-policy": "no-referrer",  # the address has the token
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'none'",
}
"""Of every answer. Nothing may be loaded from elsewhere; NiceGUI's templates need scripts in the page."""
WAY_OUT = "open the address that `egalitarian explore` printed"


def hosts_of(port: int) -> tuple[str, ...]:
    """What the header Host may be."""
    return f"127.0.0.1:{port}", f"localhost:{port}"


def refusal(path: str, headers: Iterable[tuple[bytes, bytes]], token: str, port: int) -> str:
    """Why a request is refused; empty if it is not."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    hosts = found.get("host", [])
    if len(hosts) != 1 or hosts[0].lower() not in hosts_of(port):
        return f"Host must be {' or '.join(hosts_of(port))}, got {_listed(hosts)}; {WAY_OUT}"
    origins = found.get("origin", [])
    if origins and (len(origins) != 1 or origins[0].lower() != f"http://{hosts[0].lower()}"):
        return f"Origin must be the explorer itself, got {_listed(origins)}; {WAY_OUT}"
    given = path.removeprefix("/").partition("/")[0]
    if not secrets.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
        return f"the address must have the token that was printed, got {'another' if given else 'none'}; {WAY_OUT}"
    return ""


def _listed(values: list[str]) -> str:
    return ", ".join(repr(value[:100]) for value in values) or "none"


class Guard:
    """An ASGI app in front of another, which it passes on what is not refused. A refusal has the status 403."""

    def __init__(self, app: App, token: str, port: int) -> None:
        self.app, self._token, self._port = app, token, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif not (reason := refusal(scope["path"], scope["headers"], self._token, self._port)):
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason[:120]})  # before it was accepted: 403
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await _with_headers(send)({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": f"Refused: {reason}.\n".encode()})


def _with_headers(send: Send) -> Send:
    async def send_with_headers(event: Event) -> None:
        if event["type"] == "http.response.start":
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            event = {**event, "headers": [*event.get("headers", []), *added]}
        await send(event)

    return send_with_headers
