"""MCP for OpenEnv's clients: JSON-RPC with two tools, ``begin`` and ``act``, and sessions without a WebSocket.

``openenv/session/create`` creates a session, ``tools/list`` and ``tools/call`` with its ``session_id`` use it, and
``openenv/session/close`` ends it. The id is the session's token: ``/ws?session_id=ID`` is the same session. On a
WebSocket, and under ``/s/TOKEN/mcp``, no id is needed. The rest of MCP (``initialize``, notifications, streams) is not
supported.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from ragen.errors import InputError, RagenError, in_short
from ragen.serve.sessions import Answer, ServedSession, Sessions

NO_REQUEST, NO_METHOD, BAD_PARAMS, FAILED = -32600, -32601, -32602, -32603
"""Codes of JSON-RPC."""
_SESSIONS = ("openenv/session/create", "openenv/session/close")


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "inputSchema": schema, "input_schema": schema}


TOOLS = (
    _tool(
        "begin",
        "Begin an episode; returns the first observation.",
        [],
        seed={"type": "integer", "minimum": 0, "description": "decides the episode; drawn if not given"},
        env={"type": "string", "description": "which of the server's environments"},
        mode={"type": "string", "enum": ["train", "val"]},
    ),
    _tool(
        "act",
        "Play a turn; returns the observation, the reward, and whether the episode is over.",
        ["text"],
        text={"type": "string", "description": "an action, or a reply with the action in <answer>"},
    ),
)
"""The answer to ``tools/list``, with the schema under MCP's key and under OpenEnv's."""


class Tools:
    """Answers MCP messages."""

    def __init__(self, sessions: Sessions) -> None:
        """Use these sessions."""
        self._sessions = sessions

    async def answer(self, message: Any, session: ServedSession | None = None) -> dict[str, Any]:
        """The answer to a message.

        Args:
            message: The parsed message, which may be anything.
            session: The session that received it; None if the message must name one.
        """
        if (
            not isinstance(message, dict)
            or message.get("jsonrpc") != "2.0"
            or not isinstance(message.get("method"), str)
        ):
            return _fault(None, NO_REQUEST, "Invalid Request")
        number, method, params = message.get("id"), message["method"], message.get("params") or {}
        if method != "tools/list" and method != "tools/call" and method not in _SESSIONS:
            return _fault(number, NO_METHOD, f"Method not found: {in_short(method)}")
        try:
            if not isinstance(params, dict):
                raise InputError(f"params is an object, not {in_short(params)}.")
            return {"jsonrpc": "2.0", "id": number, "result": await self._result(method, params, session)}
        except InputError as error:
            return _fault(number, BAD_PARAMS, str(error))
        except RagenError as error:
            return _fault(number, FAILED, str(error))

    async def _result(self, method: str, params: Mapping[str, Any], session: ServedSession | None) -> dict[str, Any]:
        if method == "tools/list":
            return {"tools": list(TOOLS)}
        if method == "openenv/session/create":
            created = session or self._sessions.attach(secrets.token_hex(16))
            return {"session_id": created.key}
        known = session or self._sessions.find(params.get("session_id"))
        if known is None:
            raise InputError("session_id is missing or not open; openenv/session/create makes one.")
        if method == "openenv/session/close":
            await known.end(keeps_journal=False)
            return {"session_id": known.key, "closed": True}
        answer = await self.call(known, params.get("name"), params.get("arguments") or {}, params.get("request_id"))
        data = shown(answer)
        return {"data": data, "content": [{"type": "text", "text": json.dumps(data)}], "isError": False}

    async def call(self, session: ServedSession, name: Any, arguments: Any, request_id: Any = None) -> Answer:
        """Call a tool; returns the answer of the reset or step.

        Raises:
            InputError: There is no such tool, or its arguments are invalid.
            RagenError: The call was not played.
        """
        tool = next((each for each in TOOLS if each["name"] == name), None)
        if tool is None:
            raise InputError(f"there is no tool {in_short(name)}; there are begin and act.")
        known = tool["inputSchema"]["properties"]
        if not isinstance(arguments, dict) or set(arguments) - set(known):
            raise InputError(f"{name} takes {', '.join(known)}; got {in_short(arguments)}.")
        return await (session.reset if name == "begin" else session.step)(arguments, request_id)


def shown(answer: Answer) -> dict[str, Any]:
    """The part of an answer that a tool returns."""
    return {name: answer[name] for name in ("observation", "reward", "done")}


def _fault(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
