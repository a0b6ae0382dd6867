"""OpenEnv's wire as a client speaks it: a session on a WebSocket, what its server says of itself, and actions of texts.

A socket is a session, and a server forgets the session with the socket. So a step whose answer does not come is never
sent again, except to servers that keep sessions under a token and know a call by its ``request_id``, as ``ragen serve``
does; they say so in ``/metadata``.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from ragen.errors import ConfigError, OpenEnvError, in_short
from ragen.extras import needs

LARGEST_REPLY = 100 * 2**20
"""Bytes of a message; OpenEnv's own clients take as many."""
SESSIONS, TOKEN = "sessions", "{token}"
"""Path of sessions in ``/metadata``: ``{"extensions": {"sessions": "/s/{token}"}}``."""
LOST, TIMEOUT, REFUSED = "LOST", "TIMEOUT", "VALIDATION_ERROR"
"""Codes of errors: no connection, no answer in time (both ours), and OpenEnv's for an action that is none."""
GENERIC_TEXTS = ("1", "a", "(1 + 2) * 3", "search[red shoes]", "I do not know.")
PAUSES = (0.1, 0.3, 1.0)  # seconds before a lost call is made again; the last one again and again
_CLOSING = 2.0  # seconds for a goodbye
_ENDED = 1000  # close code of a session that was ended; a server that is stopped sends another one


def base_url(url: str) -> str:
    """A server's address with ``http`` or ``https``, and without ``/ws`` at its end."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/").removesuffix("/ws"), "", ""))


def auth_headers(token_file: str | None) -> dict[str, str]:
    """The headers that show a token.

    Raises:
        ConfigError: The file cannot be read.
    """
    if token_file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {Path(token_file).read_text('utf-8').strip()}"}
    except (OSError, ValueError) as error:
        raise ConfigError(f"openenv: auth_token_file {token_file} cannot be read: {error}.") from error


class Facts(NamedTuple):
    """A server's description of itself.

    Attributes:
        action: The JSON schema of its actions.
        sessions: Path of a session by its token, such as ``/s/{token}``; empty if it keeps none.
    """

    action: Mapping[str, Any]
    sessions: str = ""

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], timeout: float) -> Facts:
        """Ask a server.

        Raises:
            OpenEnvError: It does not answer, or has no schema of actions.
        """
        try:
            action = dict(_fetched(f"{base_url(url)}/schema", headers, timeout)["action"])
        except (LookupError, TypeError, ValueError) as error:
            text = f"{base_url(url)}/schema has no schema of actions; is this an OpenEnv server?"
            raise OpenEnvError(text) from error
        try:
            sessions = str(_fetched(f"{base_url(url)}/metadata", headers, timeout)["extensions"][SESSIONS])
        except (OpenEnvError, LookupError, TypeError):
            sessions = ""
        return cls(action, sessions if TOKEN in sessions else "")

    def session(self, token: str) -> str:
        """The path of a session of this token, where the server keeps sessions; else empty."""
        return self.sessions.replace(TOKEN, quote(token, safe=""))


def _fetched(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    import httpx

    try:
        return httpx.get(url, headers=dict(headers), timeout=timeout, follow_redirects=True).raise_for_status().json()
    except httpx.TransportError as error:
        text = f"no server answers at {url.rpartition('/')[0]}: {_in_words(error)}. Start it, or correct the address."
        raise OpenEnvError(text, LOST) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise OpenEnvError(f"{url} did not answer as an OpenEnv server does: {_in_words(error)}.", LOST) from error


class Session:
    """A session, which lives through a cut of its connection where its server keeps it."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float, path: str = "") -> None:
        """Know the server; the first call connects.

        Args:
            url: Its address.
            headers: Sent when connecting.
            timeout: Seconds for a call, connecting and a retry included.
            path: The path of a session that is kept, such as ``/s/TOKEN``; empty for one that ends with its socket.

        Raises:
            MissingExtraError: ``websockets`` is not installed.
        """
        with needs("openenv", "an OpenEnv client"):
            from websockets.exceptions import ConnectionClosed, WebSocketException
            from websockets.sync.client import connect

        self._closed, self._failures = ConnectionClosed, (OSError, WebSocketException)
        self._url, self._timeout, self._path = base_url(url), timeout, path
        self._connect = partial(
            connect,
            f"ws{self._url.removeprefix('http')}{path}/ws",
            additional_headers=dict(headers),
            close_timeout=_CLOSING,
            max_size=LARGEST_REPLY,
            compression=None,
            ping_interval=None,  # a thread less; the server pings, and every wait here has an end
        )
        self._socket: Any = None
        self._count = 0

    def call(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call; where its connection is lost and nothing can be played twice, again on a new one.

        That is so of a reset, which starts over in any case, once; and of every call where sessions are kept, until the
        time is up.

        Args:
            kind: ``"reset"``, ``"step"`` or ``"state"``.
            data: Its content.

        Returns:
            The answer's ``data``.

        Raises:
            OpenEnvError: The call was refused or has no answer; the server's code, ``LOST`` or ``TIMEOUT``.
        """
        until, self._count = time.monotonic() + self._timeout, self._count + 1
        message: dict[str, Any] = {"type": kind, "data": data}
        if self._path:
            message["request_id"] = f"call-{self._count}"
        pauses = chain(PAUSES, repeat(PAUSES[-1])) if self._path else iter(PAUSES[:1] if kind == "reset" else ())
        while True:
            try:
                return self._read(kind, self._ask(kind, message, until))
            except OpenEnvError as error:
                if error.code in (LOST, TIMEOUT, ""):
                    self.drop()
                pause = next(pauses, math.inf)
                if error.code != LOST or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)

    def _open(self, until: float) -> None:
        try:
            self._socket = self._connect(open_timeout=_left(until)).__enter__()
        except self._failures as error:
            raise OpenEnvError(f"no connection to {self._url}: {_in_words(error)}.", LOST) from error

    def _ask(self, kind: str, message: Any, until: float) -> str | bytes:
        if self._socket is None:
            if kind != "reset" and not self._path:
                raise OpenEnvError(f"the session at {self._url} was lost with its connection.", LOST)
            self._open(until)
        try:
            with suppress(self._closed):  # a server that is full says so and hangs up: that is still to be read
                self._socket.send(json.dumps(message))
            return self._socket.recv(timeout=_left(until))  # type: ignore[no-any-return]
        except TimeoutError as error:
            text = f"{self._url} did not answer a {kind} within {self._timeout:.3g} s."
            raise OpenEnvError(text, TIMEOUT) from error
        except (self._closed, OSError) as error:
            text = f"the connection to {self._url} was lost during a {kind}: {_in_words(error)}."
            raise OpenEnvError(text, LOST) from error

    def _read(self, kind: str, raw: str | bytes) -> dict[str, Any]:
        try:
            answer = json.loads(raw)
            data = answer["data"]
            if answer["type"] == "error":
                code, text = str(data.get("code")), str(data.get("message"))
                raise OpenEnvError(f"{self._url} answered a {kind} with {code}: {in_short(text)}", code)
            if not isinstance(data, dict) or (kind != "state" and "observation" not in data):
                raise ValueError("it has no observation")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            text = f"{self._url} answered a {kind} with what cannot be read: {in_short(raw)} ({error})."
            raise OpenEnvError(text) from error
        return data

    def drop(self) -> None:
        """Let go of the connection, and of nothing else."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(Exception):
                socket.close()

    def close(self, patience: float = _CLOSING) -> None:
        """End the session; where sessions are kept, on a new connection if the old one was cut.

        Args:
            patience: Seconds for new connections; a server that cannot be reached in that time keeps the session.
        """
        has_ended, until = self._end(), time.monotonic() + patience
        while self._path and self._count and not has_ended and time.monotonic() < until:
            try:
                self._open(until)
                has_ended = self._end()
            except OpenEnvError:
                time.sleep(PAUSES[0])

    def _end(self) -> bool:
        """End the session on its connection; returns whether the server is known to have ended it."""
        has_ended = False
        try:
            self._socket.send(json.dumps({"type": "close"}))
            self._socket.recv(timeout=_CLOSING)
        except self._closed as closed:
            has_ended = closed.rcvd is not None and closed.rcvd.code == _ENDED
        except Exception:
            pass  # there is none; or whatever is the matter with it, the session is not known to have ended
        self.drop()
        return has_ended


def _in_words(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


class Actions:
    """Actions of a server, made of a player's texts by the schema that it has for them."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take the schema of actions, as ``/schema`` has it."""
        self._schema = schema
        self._fields: Mapping[str, Any] = schema.get("properties") or {}
        self._required = [name for name in schema.get("required") or () if name in self._fields]
        # The one field that an action must have; empty where there are several or none.
        self._only = self._required[0] if len(self._required) == 1 else ""

    @property
    def hint(self) -> str:
        """The accepted forms, for people."""
        if not self._only:
            return f"a JSON object with {', '.join(self._required) or 'any fields'}"
        kinds = "/".join(sorted(self._kinds(self._only))) or "any value"
        return f"{self._only} ({kinds})"

    def of_text(self, text: str) -> dict[str, Any] | None:
        """The action that a text stands for.

        Args:
            text: Of an action with one required field, its value, as it is or as JSON; of another, a JSON object.

        Returns:
            The action; None if the text is none.
        """
        value: Any
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if isinstance(value, dict) and set(self._required) <= set(value):
            return value
        if not self._only:
            return None
        kinds = self._kinds(self._only)
        if not kinds or "string" in kinds:
            return {self._only: text}
        return {self._only: value} if _kind_of(value) & kinds else None

    def example(self, rng: Random) -> str:
        """The text of an action, of the schema's examples where it names some."""
        names = self._required or [name for name in self._fields if name != "metadata"]
        action = {name: self._example(self._fields[name], rng) for name in names}
        value = action.get(self._only)
        return value if isinstance(value, str) else json.dumps(value if self._only else action)

    def _kinds(self, name: str) -> set[str]:
        """The JSON types that a field may have; none if its schema does not say."""
        schema = self._resolved(self._fields[name])
        kinds = schema.get("type", [])
        return set(kinds if isinstance(kinds, list) else [kinds])

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        for _ in range(10):  # a reference to a reference to ...
            if not isinstance(schema, Mapping):
                return {}
            options = [each for each in schema.get("anyOf") or schema.get("oneOf") or () if each != {"type": "null"}]
            reference = str(schema.get("$ref", ""))
            if reference.startswith("#/$defs/"):
                schema = (self._schema.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
            elif options:
                schema = options[0]
            elif len(schema.get("allOf") or ()) == 1:
                schema = schema["allOf"][0]
            else:
                return schema
        return {}

    def _example(self, schema: Mapping[str, Any], rng: Random, depth: int = 0) -> Any:
        named, schema = schema.get("examples"), self._resolved(schema)
        if choices := named or schema.get("examples") or schema.get("enum"):
            return rng.choice(choices)
        if "const" in schema:
            return schema["const"]
        kind, low = schema.get("type"), int(schema.get("minimum", 0))
        if kind == "boolean":
            return rng.random() < 0.5
        if kind in ("integer", "number"):
            value = rng.randint(low, max(low, int(schema.get("maximum", low + 4))))
            return value if kind == "integer" else float(value)
        if kind == "array" and depth < 4:
            return [self._example(schema.get("items", {}), rng, depth + 1)]
        if kind == "object" and depth < 4:
            fields = schema.get("properties") or {}
            names = schema.get("required", fields)
            return {name: self._example(fields.get(name, {}), rng, depth + 1) for name in names}
        return rng.choice(GENERIC_TEXTS)


def _kind_of(value: Any) -> set[str]:
    kinds = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, list: {"array"}, dict: {"object"}}
    return kinds.get(type(value), set())
