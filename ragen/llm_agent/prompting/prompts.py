"""What the model is told: the rules of its game once, and every turn the state and the form of the answer.

A prompt for the third turn reads, by role::

    system     SYSTEM_PROMPT
    user       <instruction, symbols, actions, limits>  Turn 1: State: ..  You have 10 actions left. Always output: ..
    assistant  <think>..</think><answer>..</answer>
    user       Reward: ..  Turn 2: State: ..
    assistant  ..
    user       Reward: ..  Turn 3: State: ..
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from ragen.env.registry import REGISTERED_ENV_CONFIGS, resolve_env
from ragen.errors import ConfigError
from ragen.llm_agent.prompting.control_tokens import ControlTokens

SYSTEM_PROMPT = "You are an agent that acts in an environment, one turn at a time. Earn as much reward as you can."
THINK_FORMAT = "<think> how you decide </think> <answer> what you do </answer>"
ANSWER_FORMAT = "<answer> what you do </answer>"


@dataclass(frozen=True)
class TagPrompt:
    """What all environments of a tag are told.

    Attributes:
        instruction: The rules, before the first state.
        reply_format: The form of the answer.
        max_tokens: The length that a reply is asked to keep to; None does not ask.
    """

    instruction: str
    reply_format: str
    max_tokens: int | None = None

    def turn(self, number: int, state: str, actions_left: int | None) -> str:
        """The text that asks for one turn.

        Args:
            number: The turn's number in its episode, from 1.
            state: The observation.
            actions_left: How many actions the episode may still take; None does not say.
        """
        left = "" if actions_left is None else f"You have {actions_left} actions left. "
        length = "" if self.max_tokens is None else f" Use {self.max_tokens} words (tokens) at most."
        return (
            f"Turn {number}:\nState:\n{state}\n"
            f"{left}Always output: {self.reply_format} with nothing before, between or after.{length}"
        )


class PromptSettings(Protocol):
    """What a prompt depends on of :class:`~ragen.llm_agent.config.context.ContextSettings`."""

    @property
    def enable_think(self) -> bool:
        """Whether replies think before they answer."""

    @property
    def action_sep(self) -> str:
        """What stands between two actions of a reply."""

    @property
    def max_actions_per_turn(self) -> int | None:
        """The most actions of a reply that count; None counts all."""

    @property
    def response_length(self) -> int | None:
        """Tokens of one reply; None if unknown."""


def reward_text(reward: float) -> str:
    """The text that tells a turn's reward, to six digits."""
    return f"Reward:\n{reward + 0.0:.6g}"  # + 0.0 turns -0.0 into 0


def tag_prompt(tag: str, entry: Mapping[str, Any], settings: PromptSettings, control: ControlTokens) -> TagPrompt:
    """The prompt of a tag.

    Only the environment's configuration class is imported, where the registry knows it.

    Args:
        tag: The name under ``custom_envs``.
        entry: What stands there: ``env_type``, ``env_instruction``, ``env_config``, ``max_actions_per_traj``,
            ``max_tokens``.
        settings: Such as the context manager's.
        control: Broken up wherever they occur in the instruction.

    Raises:
        ConfigError: ``env_type`` is missing, or ``env_config`` does not fit the environment's configuration.
        UnknownEnvError: There is no such environment type.
    """
    game = _env_config(tag, entry)
    paragraphs = [
        str(entry.get("env_instruction") or "").strip(),
        _symbols(game),
        _actions(game, settings.action_sep),
        _limits(settings.max_actions_per_turn, entry.get("max_actions_per_traj")),
    ]
    return TagPrompt(
        instruction=control.defuse("\n".join(filter(None, paragraphs))),
        reply_format=THINK_FORMAT if settings.enable_think else ANSWER_FORMAT,
        max_tokens=entry.get("max_tokens") or settings.response_length,
    )


def _env_config(tag: str, entry: Mapping[str, Any]) -> Any:
    """The environment's configuration as it will be built, or its bare fields where it has no class."""
    env_type, fields = entry.get("env_type"), entry.get("env_config") or {}
    if not isinstance(env_type, str):
        raise ConfigError(f"custom_envs.{tag}.env_type is {env_type!r}; expected the name of an environment type.")
    if not isinstance(fields, Mapping):
        raise ConfigError(f"custom_envs.{tag}.env_config is {fields!r}; expected a mapping of fields, or null.")
    known = env_type in REGISTERED_ENV_CONFIGS
    config_class = REGISTERED_ENV_CONFIGS[env_type] if known else resolve_env(env_type)[1]
    if config_class is None:
        return SimpleNamespace(**{str(name): value for name, value in fields.items()})
    try:
        return config_class(**fields)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"custom_envs.{tag}.env_config does not fit {config_class.__name__}: {error}.") from error


def _symbols(game: Any) -> str:
    """What each symbol of the grid means; nothing where the observation shows no grid."""
    vocabulary = getattr(game, "grid_vocab", None)
    if not vocabulary or getattr(game, "observation_format", "grid") == "coord":
        return ""
    return "Symbols in the state: " + ", ".join(f"{symbol} is {meaning}" for symbol, meaning in vocabulary.items())


def _actions(game: Any, separator: str) -> str:
    lookup = getattr(game, "action_lookup", None)
    if not lookup:
        return ""
    names = ", ".join(str(name) for name in lookup.values())
    return f'Available actions: {names}. To take several in a row, put "{separator}" between them.'


def _limits(per_turn: int | None, per_trajectory: int | None) -> str:
    limits = []
    if per_turn is not None:
        limits.append(f"{per_turn} in one turn")
    if per_trajectory is not None:
        limits.append(f"{per_trajectory} in the whole episode")
    return f"The most actions you can take: {', '.join(limits)}." if limits else ""
