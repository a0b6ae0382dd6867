"""The wire: OpenEnv 0.10's messages over WebSocket, its HTTP endpoints, and authentication.

=====================================  ==========================================================================
``/ws``                                a session that ends with its connection
``/s/TOKEN/ws``                        a session that can be resumed by its token, which the client chooses
``POST /s/TOKEN/reset``, ``/step``     the same session over HTTP; ``GET /s/TOKEN/state``, ``DELETE /s/TOKEN``
``POST /reset``, ``/step``             one call on a fresh environment, as OpenEnv defines it
``GET /health`` ...                    ``/metadata``, ``/schema``, ``/state``, ``/openapi.json``, ``/list_environments``
=====================================  ==========================================================================

All of them are also available under ``/s/TOKEN``, for clients that append paths to a single base address.

The calls of a connection are handled one at a time: the next message is read after the answer was sent, so that a
client that sends faster than it is served waits in its own connection. Messages and answers are JSON that any strict
reader takes; invalid messages are refused with a code. The event loop neither steps environments nor waits for the
disk.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import ragen
from ragen.errors import (
    DivergenceError,
    InputError,
    RagenError,
    ServiceFullError,
    SessionLostError,
    in_short,
)
from ragen.extras import needs
from ragen.files import json_text
from ragen.serve.sessions import Answer, ServedSession, Sessions

with needs("serve", "ragen serve"):
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect

log = logging.getLogger(__name__)

MAX_FRAME = 1 << 20
"""Maximum size of a message or of a request's body, in bytes."""
SWEEPS = 10  # per idle time-out
TAKEN_OVER, FULL = 4001, 1013
"""Close codes: another connection holds the session now; there is no session."""
GONE = (WebSocketDisconnect, RuntimeError)
"""Starlette's errors for a connection that is closed, by the client or by us."""
CALLS = {"reset": "POST", "step": "POST", "state": "GET", "close": "DELETE"}
"""The types of messages, and their methods over HTTP."""
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _InvalidJsonError(InputError):
    """A message is not strict JSON."""


class _UnknownTypeError(InputError):
    """A message has a type that does not exist."""


class _UnauthorizedError(InputError):
    """A request has no token, or comes from another site."""


FAULTS = {
    _InvalidJsonError: ("INVALID_JSON", 400),
    _UnknownTypeError: ("UNKNOWN_TYPE", 422),
    _UnauthorizedError: ("UNAUTHORIZED", 401),
    InputError: ("VALIDATION_ERROR", 422),
    ServiceFullError: ("CAPACITY_REACHED", 503),
    SessionLostError: ("SESSION_ERROR", 409),
    DivergenceError: ("SESSION_ERROR", 409),
    Exception: ("EXECUTION_ERROR", 500),
}
"""The code and the HTTP status of an error; the first class that fits counts."""


class _Json(Response):
    """An answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_text(content).encode()


def create_app(sessions: Sessions, auth_token: str | None = None, hosts: tuple[str, ...] = ()) -> Starlette:
    """The ASGI application.

    Args:
        sessions: The sessions; shut down with the application.
        auth_token: The token that clients must send as ``Authorization: Bearer ...``; None requires none.
        hosts: Without a token, the host names under which the server may be addressed; empty for any.
    """
    server = _Server(sessions)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(server.sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await sessions.shut_down()

    routes: list[Any] = [Route("/s/{token}", partial(server.call, "close"), methods=["DELETE"])]
    for prefix in ("/s/{token}", ""):
        routes += [
            WebSocketRoute(f"{prefix}/ws", server.socket),
            *(Route(f"{prefix}/{name}", _Json(fact)) for name, fact in _facts(sessions).items()),
            *(
                Route(f"{prefix}/{kind}", partial(server.call, kind), methods=[method])
                for kind, method in CALLS.items()
                if kind != "close"
            ),
        ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(_Guard, auth_token=auth_token, hosts=hosts)
    return app


class _Guard:
    """Checks the token; without one, refuses cross-site requests from browsers."""

    def __init__(self, app: Any, auth_token: str | None, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, hosts
        self._expected = None if auth_token is None else f"Bearer {auth_token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        app = self._app
        if scope["type"] != "lifespan" and scope["path"] != "/health" and not self._lets_in(Headers(scope=scope)):
            app = _refusal(_UnauthorizedError("send the server's token as Authorization: Bearer"))
        # A call that has begun is played and kept, also if its request is cancelled.
        await asyncio.shield(app(scope, receive, send))

    def _lets_in(self, headers: Headers) -> bool:
        if self._expected is not None:
            return hmac.compare_digest(headers.get("authorization", "").encode(), self._expected)
        host, origin = headers.get("host", ""), headers.get("origin")
        is_ours = not self._hosts or re.sub(r":\d+$", "", host).strip("[]") in self._hosts
        return is_ours and (origin is None or origin.partition("://")[2] == host)


class _Server:
    """The endpoints of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sessions.settings.idle_timeout / SWEEPS)
            with suppress(RagenError):
                await self._sessions.sweep()

    async def socket(self, socket: WebSocket) -> None:
        """Handle a connection from beginning to end.

        It is accepted once it holds its session: from then on, messages from earlier connections of this session are
        no longer played.
        """
        with suppress(*GONE):
            try:
                session = self._sessions.attach(socket.path_params.get("token"))
            except RagenError as error:
                await socket.accept()
                await socket.send_text(json_text({"type": "error", "data": _fault(error)[0]}))
                await socket.close(FULL)
                return
            before, mine = session.on_end, partial(_close, socket)
            session.on_end = mine
            try:
                if before is not None:
                    await before(TAKEN_OVER)
                await socket.accept()
                while (received := await socket.receive())["type"] == "websocket.receive" and session.on_end is mine:
                    raw = received.get("text") or received.get("bytes") or ""
                    await socket.send_text(json_text(await _replied(session, raw)))
            finally:
                if session.on_end is mine:
                    session.on_end = None
                await self._sessions.leave(session)

    async def call(self, kind: str, request: Request) -> Response:
        """Answer a message over HTTP; without a token it goes to a fresh environment, which a step has reset."""
        token = request.path_params.get("token")
        try:
            body = _object(await _body(request) or b"{}")
            session = self._sessions.attach(token)
            try:
                if kind == "step" and token is None:
                    await session.call("reset", {})
                data = body.get("action") if kind == "step" else body
                return _Json(await _called(session, {**body, "type": kind, "data": data}))
            finally:
                await self._sessions.leave(session)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return _refusal(error)


async def _close(socket: WebSocket, code: int) -> None:
    """Close a connection, which may be closed already."""
    with suppress(*GONE):
        await socket.close(code)


async def _replied(session: ServedSession, raw: str | bytes) -> dict[str, Any]:
    """The reply to a message over WebSocket."""
    try:
        message = _object(raw)
        data = await _called(session, message)
        return {"type": "state" if message["type"] == "state" else "observation", "data": data}
    except Exception as error:
        return {"type": "error", "data": _fault(error)[0]}


async def _called(session: ServedSession, message: Mapping[str, Any]) -> Answer:
    kind, data = message.get("type"), message.get("data")
    if kind not in [*CALLS]:
        raise _UnknownTypeError(f"unknown type {in_short(kind)}; expected one of {', '.join(CALLS)}.")
    if data is None and kind != "step":
        data = {}
    if not isinstance(data, dict):
        raise InputError(f"the data of a {kind}, over HTTP its action, is an object, not {in_short(data)}.")
    if kind == "close":
        await session.end(keeps_journal=False)
        return {"status": "closed"}
    return await session.call(kind, data, message.get("request_id"))


def _fault(error: Exception) -> tuple[dict[str, Any], int]:
    """The description of an error, of an unexpected one only its type; and its HTTP status."""
    code, status = next(fault for kind, fault in FAULTS.items() if isinstance(error, kind))
    text = str(error)
    if not isinstance(error, RagenError):
        log.error("a call failed", exc_info=error)
        text = f"the server failed ({type(error).__name__}); its log says more."
    return {"message": text, "code": code}, status


def _refusal(error: Exception) -> Response:
    data, status = _fault(error)
    return _Json({"detail": data["message"], **data}, status)


async def _body(request: Request) -> bytearray:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_FRAME:
            raise InputError(f"a body has at most {MAX_FRAME} bytes.")
    return body


def _object(raw: str | bytes | bytearray) -> dict[str, Any]:
    """A message; NaN, which JSON does not know, and half characters, which no text in UTF-8 has, are refused."""
    try:
        message = json.loads(raw)
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise _InvalidJsonError(f"Invalid JSON: {error}") from error
    if not isinstance(message, dict):
        raise InputError(f"a message is an object, not {in_short(message)}.")
    return message


def _facts(sessions: Sessions) -> dict[str, Any]:
    """The answers that never change, by their path."""
    tags, about = [*sessions.settings.tags], {"version": ragen.__version__}
    text = {"type": "string"}
    names = {"examples": [*sessions.named[tags[0]]]} if sessions.named[tags[0]] else {}
    observation = _schema("Observation", "text", text=text, images={"type": "array", "items": text})
    # Clients consider a server whose action has the name Action one that only has tools.
    action = _schema("TextAction", "text", text=text | names, metadata={"type": "object"})
    episode_id = {"anyOf": [text, {"type": "null"}]}
    facts: dict[str, Any] = {
        "health": {"status": "healthy"},
        "list_environments": tags,
        "metadata": {
            "name": tags[0],
            "description": f"Text environments: {', '.join(tags)}. reset takes env, seed, mode, episode_id.",
            "extensions": {"sessions": "/s/{token}", "request_id": True},
            **about,
        },
        "schema": {
            "action": action | {"additionalProperties": False},
            "observation": observation,
            "state": _schema("State", "step_count", episode_id=episode_id, step_count={"type": "integer"}),
            "reset_observation": observation,
        },
        # Every OpenEnv server answers here, also one without tools.
        "mcp": {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32601, "message": "no tools here; use reset and step"},
        },
    }
    described = {"responses": {"200": {"description": "OK", "content": {"application/json": {}}}}}
    methods = {**dict.fromkeys(facts, "GET"), "mcp": "POST", **CALLS}
    paths = {f"/{name}": {method.lower(): described} for name, method in methods.items() if name != "close"}
    return {**facts, "openapi.json": {"openapi": "3.1.0", "info": {"title": "ragen serve", **about}, "paths": paths}}


def _schema(title: str, required: str, **properties: Any) -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": properties, "required": [required]}
