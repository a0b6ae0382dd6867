"""Configuration of an environment that runs on an OpenEnv server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.env.checks import TEXT, Rule, address, check, number


@dataclass
class OpenEnvEnvConfig:
    """Configuration of :class:`~ragen.env.openenv.env.OpenEnvEnv`.

    Attributes:
        url: The server's address, such as ``http://127.0.0.1:8000``; required.
        timeout: Seconds that a call may take, connecting and one retry included. Keep it below
            ``es_manager.step_timeout``, or a slow server costs a worker instead of an environment.
        reset_options: Values that a reset sends beside the seed, such as ``{"env": "sokoban"}``.
        observation_field: The field of an observation that is shown; None shows ``text``, or the only field if it is a
            text, or else the whole observation as JSON.
        success_reward: An episode whose last reward is at least this counts as a success; None leaves that to a
            ``success`` in the server's metadata.
        auth_token_file: A file with the token to send as ``Authorization: Bearer``; None sends none.
        replayable: Whether seed and actions rebuild an episode there. Say so only of a server whose
            episodes depend on nothing else.
        render_mode: ``"text"``.
    """

    url: str | None = None
    timeout: float = 30.0
    reset_options: dict[str, Any] = field(default_factory=dict)
    observation_field: str | None = None
    success_reward: float | None = None
    auth_token_file: str | None = None
    replayable: bool = False
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value; the server is asked when an episode begins.

        Raises:
            ConfigError: A value is invalid.
        """
        names = Rule(
            lambda value: isinstance(value, dict) and "seed" not in value and all(map(TEXT.fits, value)),
            "a mapping of names to values, without the seed",
        )
        check(self, url=address("http://", "https://", "ws://", "wss://"), timeout=number(0.001), reset_options=names)
