"""An environment on an OpenEnv server of anybody's, as one of ours."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult
from ragen.env.game import GameEnv
from ragen.env.openenv.config import OpenEnvEnvConfig
from ragen.env.openenv.wire import REFUSED, Actions, Facts, Session, auth_headers
from ragen.errors import ConfigError, InputError, OpenEnvError

REFUSAL = "That is no action."


class OpenEnvEnv(GameEnv, BaseLanguageBasedEnv):
    """Plays episodes in a session of its own on a server; the session begins with the first reset.

    An action is the model's text. Where the server's actions have one required field, the text is its value; else it is
    a JSON object. What does not fit the server's schema is not sent, or refused there, and shows ``That is no action.``
    """

    config_class = OpenEnvEnvConfig
    cost_hint = "io"

    _session: Any = None  # a Session and Actions once reset
    _actions: Any = None
    _shown: Any = ""
    _in_episode = False

    @property
    def action_hint(self) -> str:
        """The form of an action, as far as the server has been asked."""
        return self._actions.hint if self._actions is not None else "any text"

    def _begin(self, seed: int, mode: str | None) -> None:
        """Begin an episode on the server.

        Raises:
            OpenEnvError: The server cannot be reached or refuses the reset.
        """
        self._in_episode = False
        data: dict[str, Any] = {"seed": seed, **self.config.reset_options}
        session, keeps_sessions = self._connected()
        if keeps_sessions and mode in ("train", "val"):
            data.setdefault("mode", mode)
        answer = session.call("reset", data)
        self._shown = shown(answer["observation"], self.config.observation_field)
        self._in_episode = True

    def _connected(self) -> tuple[Session, str]:
        config, headers = self.config, auth_headers(self.config.auth_token_file)
        facts = _facts(config.url, tuple(headers.items()), config.timeout)
        if self._session is None:
            self._actions = Actions(facts.action)
            self._session = Session(config.url, headers, config.timeout, facts.session(uuid.uuid4().hex))
        return self._session, facts.sessions

    def _play(self, action: str) -> StepResult:
        """Play an action.

        Args:
            action: Any text.

        Returns:
            The observation, the reward (0 where the server gives none), whether the episode is over, and info:
            ``action_is_valid``, numbers and truth values of the server's metadata, and ``success`` at the end of an
            episode if ``success_reward`` is set.

        Raises:
            OpenEnvError: The server cannot be reached, or failed; the episode is lost.
        """
        if not self._in_episode:
            raise OpenEnvError("openenv: the episode was lost with its session; reset the environment.")
        sent = self._actions.of_text(action)
        if sent is None:
            return self._refused()
        try:
            answer = self._session.call("step", sent)
        except OpenEnvError as error:
            if error.code == REFUSED:
                return self._refused()
            self._in_episode = False
            raise
        self._shown = shown(answer["observation"], self.config.observation_field)
        reward, done = answer.get("reward"), bool(answer.get("done"))
        reward = float(reward) if isinstance(reward, int | float) else 0.0
        info = _numbers(answer.get("metadata"))
        info["action_is_valid"] = info["action_is_effective"] = not info.pop("malformed", False)
        least = self.config.success_reward
        if done and least is not None:
            info["success"] = reward >= least
        return self._shown, reward, done, info

    def _refused(self) -> StepResult:
        if isinstance(self._shown, str) and not self._shown.startswith(REFUSAL):
            self._shown = f"{REFUSAL}\n{self._shown}"
        return self._shown, 0.0, False, {"action_is_valid": False, "action_is_effective": False}

    def render(self, mode: str | None = None) -> Any:
        """The server's last observation: text, or images if it sent some and no text.

        Raises:
            InputError: Another mode than the server's was asked for.
        """
        if mode not in (None, "text"):
            raise InputError(f"OpenEnvEnv shows what its server shows; render got mode {mode!r}.")
        return self._shown

    def close(self) -> None:
        """End the session."""
        session, self._session, self._in_episode = self._session, None, False
        if session is not None:
            session.close()

    def example_action(self, rng: Random) -> str:
        """An action that fits the server's schema, of its examples where it names some."""
        return self._actions.example(rng)


@lru_cache(maxsize=64)
def _facts(url: str, headers: tuple[tuple[str, str], ...], timeout: float) -> Facts:
    return Facts.of(url, dict(headers), timeout)


def shown(observation: Any, field: str | None = None) -> Any:
    """The part of an observation that a model sees.

    Args:
        observation: As the server sent it.
        field: The field to show; None for the usual choice, which leaves out ``metadata``.

    Returns:
        A text, or a list of ``(H, W, 3)`` uint8 arrays where there are images and no text.

    Raises:
        ConfigError: There is no such field.
    """
    if not isinstance(observation, Mapping):
        return _text(observation)
    if field is not None:
        if field not in observation:
            raise ConfigError(
                f"openenv: env_config key observation_field={field!r}, expected one of {', '.join(observation)}."
            )
        return _text(observation[field])
    observation = {name: value for name, value in observation.items() if name != "metadata"}
    text, images = observation.get("text"), observation.get("images")
    if text == "" and isinstance(images, list) and images:
        return list(map(_pixels, images))
    if isinstance(text, str):
        return text
    values = list(observation.values())
    return _text(values[0] if len(values) == 1 and isinstance(values[0], str) else observation)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _pixels(image: Any) -> Any:
    import numpy as np
    from PIL import Image

    try:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB"))
    except (OSError, ValueError, TypeError) as error:
        raise OpenEnvError(f"the server sent an image that cannot be read: {error}.") from error


def _numbers(metadata: Any) -> dict[str, Any]:
    """Numbers and truth values of metadata, those of its ``info`` among them; texts and ids are no metrics."""
    if not isinstance(metadata, Mapping):
        return {}
    own = {key: value for key, value in metadata.items() if isinstance(value, bool | int | float)}
    return {**own, **_numbers(metadata.get("info"))} if "info" in metadata else own
