"""The run that goes on now: when it began, by which version, who answers, and the command to do it again."""

from __future__ import annotations

import platform
import shlex
import time
from typing import Any

import ragen
from ragen.llm_agent.backends.openai_settings import OPENAI_URL, Access
from ragen.llm_agent.config.command_line import called_as
from ragen.llm_agent.config.loading import setting
from ragen.output import shown_address, shown_override


def this_run(config: Any) -> dict[str, Any]:
    """What is known of the run that begins now, with nothing secret in it.

    Args:
        config: The whole configuration.

    Returns:
        ``began`` (local time, with its distance from UTC), ``version``, ``server`` (None where none is asked) and
        ``command`` (empty where no command runs).

    Raises:
        ConfigError: A key cannot be read.
    """
    has_server = setting(config, "actor.backend", str, "") == "openai"
    url = setting(config, "actor.base_url", str, OPENAI_URL) if has_server else None
    return {
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "version": f"ragen {ragen.__version__}, Python {platform.python_version()}",
        "server": None if url is None else shown_address(url),
        "command": command_to_repeat(),
    }


def command_to_repeat() -> str:
    """The command that runs now, with nothing secret in it; empty where none does."""
    called = called_as()
    if not called:
        return ""
    program, *words = called
    return " ".join([program, *(shlex.quote(Access().redacted(shown_override(word))) for word in words)])
