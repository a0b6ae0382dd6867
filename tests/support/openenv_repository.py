"""OpenEnv's own tests of its servers, pointed at ``ragen serve``: a plug-in of pytest for a checkout of its repository.

    PYTHONPATH=tests python -m pytest -p support.openenv_repository CHECKOUT/tests/envs/test_websockets.py

The tests start an echo environment's server; here that is ``ragen serve`` with :class:`Echo`. Its tool
``echo_message(message)`` is ``act(text)`` on our server, and the tests' client is made to say so; it is otherwise
OpenEnv's own. Tests that are skipped for want of a server with several sessions are run. Tests of OpenEnv's own
classes, of ``echo_with_length`` and of its connect-four board are about environments of its own, and are left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FOREIGN = ("factory_pattern", "create_app", "echo_with_length", "connect4")


class Echo:
    """Shows what it was told."""

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self.shown = ""

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.shown = "Say something."
        return self.shown

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.shown = action
        return action, 0.0, False, {}

    def render(self, mode: str | None = None) -> str:
        return self.shown

    def close(self) -> None:
        pass


@contextmanager
def run_server(module_path: str, port: int = 8000, **_: Any) -> Iterator[subprocess.Popen[str]]:
    """What the tests start a server with."""
    words = ["serve", "--env", f"{__name__}:Echo", "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "ragen", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    from envs.echo_env.client import EchoEnv
    from openenv.core.mcp_client import MCPToolClient

    async def call_tool(self: Any, name: str, **arguments: Any) -> Any:
        assert name == "echo_message", name
        played = await MCPToolClient.call_tool(self, "act", text=arguments["message"])
        return played["observation"]["text"]

    EchoEnv.call_tool = call_tool
    foreign = [item for item in items if any(word in item.name for word in FOREIGN)]
    config.hook.pytest_deselected(items=foreign)
    items[:] = [item for item in items if item not in foreign]
    for item in items:
        item.module.run_server = run_server
        item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]
