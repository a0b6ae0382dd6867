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
from ragen.serve.sessions import NO_EPISODE, Answer, ServedSession, Sessions

with needs("serve", "ragen serve"):
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

log = logging.getLogger(__name__)

MAX_FRAME = 1 << 20
"""Maximum size of a message or of a request's body, in bytes."""
SWEEPS = 10  # per idle time-out
CODES = {
    InputError: "VALIDATION_ERROR",
    ServiceFullError: "CAPACITY_REACHED",
    SessionLostError: "SESSION_ERROR",
    DivergenceError: "SESSION_ERROR",
}
STATUS = {"VALIDATION_ERROR": 422, "INVALID_JSON": 400, "CAPACITY_REACHED": 503, "SESSION_ERROR": 409}
TAKEN_OVER, TOO_BIG = 4001, 1009
"""Close codes: another connection holds the session now; a message was too long."""
GETS = ("health", "metadata", "schema", "state", "openapi.json", "list_environments")
POSTS = ("reset", "step", "mcp")
BODY_S = 10  # seconds until a body is complete
CLOSED = {"status": "closed"}
NO_TOOLS = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no tools here; use reset and step"}}
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
OnEnd = Callable[[int], Awaitable[None]]


class _Json(Response):
    """An answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json_text(content).encode()


class _Refused(Exception):
    """An invalid message, and the code of its refusal."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


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

    routes: list[Any] = [Route("/s/{token}", _finished(server.delete), methods=["DELETE"])]
    for prefix in ("/s/{token}", ""):
        routes += [
            WebSocketRoute(f"{prefix}/ws", _finished(server.socket)),
            *(Route(f"{prefix}/{name}", _finished(getattr(server, name.partition(".")[0]))) for name in GETS),
            *(Route(f"{prefix}/{name}", _finished(getattr(server, name)), methods=["POST"]) for name in POSTS),
        ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(_Guard, auth_token=auth_token, hosts=hosts)
    return app


def _finished(endpoint: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """An endpoint that is not cancelled with its request: a call that has begun is played and kept."""

    async def begin(asked: Any) -> Any:
        task = asyncio.ensure_future(endpoint(asked))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its caller may be gone
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if isinstance(asked, WebSocket):  # the server ends; its client connects again
                return None
            raise

    return begin


class _Guard:
    """Checks the token; without one, refuses cross-site requests from browsers."""

    def __init__(self, app: Any, auth_token: str | None, hosts: tuple[str, ...]) -> None:
        self._app, self._hosts = app, hosts
        self._expected = None if auth_token is None else f"Bearer {auth_token}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] == "/health" or self._lets_in(dict(scope["headers"])):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not authorized"})
        else:
            text = "send the server's token as Authorization: Bearer"
            await _Json({"detail": text, "message": text, "code": "UNAUTHORIZED"}, 401)(scope, receive, send)

    def _lets_in(self, headers: Mapping[bytes, bytes]) -> bool:
        if self._expected is not None:
            return hmac.compare_digest(headers.get(b"authorization", b""), self._expected)
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        is_ours = not self._hosts or name.strip("[]") in self._hosts
        return is_ours and (origin is None or origin.decode("latin-1").partition("://")[2] == host)


class _Server:
    """The endpoints."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sessions.settings.idle_timeout / SWEEPS)
            with suppress(RagenError):
                await self._sessions.sweep()

    # WebSocket

    async def socket(self, socket: WebSocket) -> None:
        """Handle a connection from beginning to end.

        It is accepted once it holds its session: from then on, messages from earlier connections of this session are
        no longer played.
        """
        token = socket.path_params.get("token")
        try:
            session = self._sessions.attach(token)
        except RagenError as error:
            with suppress(WebSocketDisconnect, RuntimeError):
                await socket.accept()
                await _say(socket, self._fault(error))
            await _close(socket, 1013)
            return
        before, mine = session.on_end, partial(_close, socket)
        session.on_end = mine
        try:
            if before is not None:
                await before(TAKEN_OVER)
            try:
                await socket.accept()
            except (WebSocketDisconnect, RuntimeError):  # the client is gone, or another one holds the session already
                return
            await self._converse(socket, session, mine)
        finally:
            if session.on_end is mine:
                session.on_end = None
            await self._sessions.leave(session)

    async def _converse(self, socket: WebSocket, session: ServedSession, mine: OnEnd) -> None:
        while True:
            try:
                raw = await _received(socket)
            except (WebSocketDisconnect, RuntimeError):
                return
            if session.on_end is not mine:  # sent before this client noticed that another connection holds the session
                return
            try:
                if len(raw) > MAX_FRAME:
                    raise InputError(f"a message has at most {MAX_FRAME} bytes.")
                message = _object(raw)
                if message.get("type") == "close":
                    session.on_end = None
                    await session.end(keeps_journal=False)
                    await _close(socket)
                    return
                answer = await self._answer(session, message)
            except Exception as error:
                answer = self._fault(error)
            try:
                await _say(socket, answer)
            except (WebSocketDisconnect, RuntimeError):  # the client is gone
                return

    async def _answer(self, session: ServedSession, message: Mapping[str, Any]) -> dict[str, Any]:
        call, data, request_id = message.get("type"), message.get("data"), message.get("request_id")
        if call == "state":
            return {"type": "state", "data": await session.state()}
        if call not in ("reset", "step"):
            raise _Refused("UNKNOWN_TYPE", f"unknown type {in_short(call)}; expected reset, step, state or close.")
        data = {} if data is None and call == "reset" else data
        if not isinstance(data, dict):
            raise InputError(f"the data of a {call} is an object, not {in_short(data)}.")
        played = session.reset(data, request_id) if call == "reset" else session.step(data, request_id)
        return {"type": "observation", "data": await played}

    def _fault(self, error: Exception) -> dict[str, Any]:
        code, text = _code(error)
        data: dict[str, Any] = {"message": text, "code": code}
        if code == "CAPACITY_REACHED":
            data |= {"active_sessions": len(self._sessions), "max_sessions": self._sessions.settings.max_sessions}
        return {"type": "error", "data": data}

    # HTTP

    async def reset(self, request: Request) -> Response:
        """Begin an episode, of a session or of a fresh environment."""
        return await self._called(request, lambda session, body: session.reset(body, body.get("request_id")))

    async def step(self, request: Request) -> Response:
        """Play a turn, of a session or of a fresh environment that is reset for it."""

        async def call(session: ServedSession, body: Mapping[str, Any]) -> Any:
            action = body.get("action")
            if not isinstance(action, dict):
                raise InputError(f"the body of a step is {{'action': {{...}}}}; action is {in_short(action)}.")
            if "token" not in request.path_params:
                await session.reset({})
            return await session.step(action, body.get("request_id"))

        return await self._called(request, call)

    async def state(self, request: Request) -> Response:
        """The state of a session's episode."""
        return await self._called(request, lambda session, _: session.state(), NO_EPISODE)

    async def delete(self, request: Request) -> Response:
        """End a session."""

        async def call(session: ServedSession, _: Any) -> Any:
            await session.end(keeps_journal=False)
            return CLOSED

        return await self._called(request, call, CLOSED)

    async def _called(
        self,
        request: Request,
        call: Callable[[ServedSession, Mapping[str, Any]], Awaitable[Any]],
        if_unknown: Answer | None = None,
    ) -> Response:
        """Answer a call; one with ``if_unknown`` creates no session, and has no body."""
        token = request.path_params.get("token")
        session = None
        try:
            if if_unknown is not None and not await self._sessions.knows(token):
                return _Json(if_unknown)
            body = {} if if_unknown is not None else _object(await _body(request) or b"{}")
            session = self._sessions.attach(token)
            return _Json(await call(session, body))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            data = self._fault(error)["data"]
            return _Json({"detail": data["message"], **data}, STATUS.get(data["code"], 500))
        finally:
            if session is not None:
                await self._sessions.leave(session)

    async def health(self, _: Request) -> Response:
        """Whether the server is up."""
        return _Json({"status": "healthy"})

    async def list_environments(self, _: Request) -> Response:
        """The tags that are served."""
        return _Json(list(self._sessions.settings.tags))

    async def metadata(self, _: Request) -> Response:
        """Name, version and environments of the server."""
        tags = list(self._sessions.settings.tags)
        return _Json(
            {
                "name": tags[0],
                "description": f"Text environments: {', '.join(tags)}. reset takes env, seed, mode, episode_id.",
                "version": ragen.__version__,
                "environments": tags,
                "extensions": {"sessions": "/s/{token}", "request_id": True},
            }
        )

    async def schema(self, _: Request) -> Response:
        """The schemas of actions, observations and states."""
        names, action = self._sessions.named[self._sessions.settings.tags[0]], SCHEMA["action"]
        text = {**_TEXT, "examples": list(names)} if names else _TEXT
        return _Json({**SCHEMA, "action": {**action, "properties": {**action["properties"], "text": text}}})

    async def openapi(self, _: Request) -> Response:
        """The HTTP endpoints."""
        described = {"responses": {"200": {"description": "OK", "content": {"application/json": {}}}}}
        calls = [(f"/{path}", "get") for path in GETS] + [(f"/{path}", "post") for path in POSTS]
        paths = {path: {method: described} for path, method in calls}
        return _Json(
            {"openapi": "3.1.0", "info": {"title": "ragen serve", "version": ragen.__version__}, "paths": paths}
        )

    async def mcp(self, _: Request) -> Response:
        """Every OpenEnv server answers here, also one without tools."""
        return _Json(NO_TOOLS)


async def _close(socket: WebSocket, code: int = 1000) -> None:
    """Close a connection, which may be closed already."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code)


def _code(error: Exception) -> tuple[str, str]:
    """The code and message of an error; of an unexpected one, only its type."""
    if isinstance(error, _Refused):
        return error.code, str(error)
    if isinstance(error, RagenError):
        return next((code for kind, code in CODES.items() if isinstance(error, kind)), "EXECUTION_ERROR"), str(error)
    log.error("a call failed", exc_info=error)
    return "EXECUTION_ERROR", f"the server failed ({type(error).__name__}); its log says more."


async def _say(socket: WebSocket, answer: Mapping[str, Any]) -> None:
    if socket.client_state is WebSocketState.DISCONNECTED:
        raise WebSocketDisconnect
    await socket.send_text(json_text(answer))


async def _received(socket: WebSocket) -> str | bytes:
    message = await socket.receive()
    if message["type"] != "websocket.receive":
        raise WebSocketDisconnect(message.get("code", 1000))
    text = message.get("text")
    return text if text is not None else message.get("bytes") or b""


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > MAX_FRAME:
                    raise InputError(f"a body has at most {MAX_FRAME} bytes.")
                parts.append(part)
    except TimeoutError:
        raise InputError(f"a body is complete within {BODY_S} s; send it at once.") from None
    return b"".join(parts)


def _object(raw: str | bytes) -> dict[str, Any]:
    """A message; NaN, which JSON does not know, and half characters, which no text in UTF-8 has, are refused."""
    try:
        message = json.loads(raw)
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise _Refused("INVALID_JSON", f"Invalid JSON: {error}") from error
    if not isinstance(message, dict):
        raise InputError(f"a message is an object, not {in_short(message)}.")
    return message


def _schema(title: str, required: str, **properties: Any) -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": properties, "required": [required]}


_TEXT = {"type": "string"}
_OBSERVATION = _schema("Observation", "text", text=_TEXT, images={"type": "array", "items": _TEXT})
_ACTION = _schema("TextAction", "text", text=_TEXT, metadata={"type": "object"}) | {"additionalProperties": False}
"""Clients consider a server whose action has the name Action one that only has tools."""
SCHEMA = {
    "action": _ACTION,
    "observation": _OBSERVATION,
    "state": _schema(
        "State",
        "step_count",
        episode_id={"anyOf": [_TEXT, {"type": "null"}]},
        step_count={"type": "integer"},
    ),
    "reset_observation": _OBSERVATION,
}
"""The answer to ``/schema``."""
