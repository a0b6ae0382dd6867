"""What the model is told: the rules of its game once, and every turn the state and the form of the answer.

A prompt for the third turn reads, by role::

    system     <system message>
    user       <instruction, symbols, actions, limits>  Turn 1: State: ..  You have 10 actions left. Always output: ..
    assistant  <think>..</think><answer>..</answer>
    user       Reward: ..  Turn 2: State: ..
    assistant  ..
    user       Reward: ..  Turn 3: State: ..

The words are a :class:`~ragen.llm_agent.prompting.template.PromptTemplate`: our own, or those of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

from ragen.env.registry import REGISTERED_ENV_CONFIGS, resolve_env
from ragen.errors import ConfigError
from ragen.llm_agent.config.generation import Generation
from ragen.llm_agent.prompting.control_tokens import ControlTokens
from ragen.llm_agent.prompting.template import DEFAULT_PROMPTS, InstructionTemplate, PromptTemplate, fill, from_yaml


@dataclass(frozen=True)
class TagPrompt:
    """What all environments of a tag are told.

    Attributes:
        instruction: The rules, before the first state.
        reply_format: The form of the answer.
        max_tokens: The length that a reply is asked to keep to; None does not ask.
        template: The words.
    """

    instruction: str
    reply_format: str
    max_tokens: int | None = None
    template: PromptTemplate = DEFAULT_PROMPTS

    def turn(
        self, number: int, state: str, actions_left: int | None, is_first: bool = False, invalid: bool = False
    ) -> str:
        """The text that asks for one turn.

        Args:
            number: The turn's number in its episode, from 1.
            state: The observation.
            actions_left: How many actions the episode may still take; None does not say.
            is_first: Whether no earlier turn is shown.
            invalid: Whether the turn before had no valid action.
        """
        text = self.template.first_turn if is_first else self.template.later_turn
        return fill(text, {"turn": number, "state": self._state(state, actions_left, invalid)})

    def current_turn(
        self, number: int, state: str, actions_left: int | None, is_alone: bool = False, invalid: bool = False
    ) -> str:
        """The same within one message that tells earlier turns too; ``is_alone`` where there are none to tell."""
        text = self.template.window.alone if is_alone else self.template.window.asked
        return fill(text, {"turn": number, "state": self._state(state, actions_left, invalid)})

    def _state(self, state: str, actions_left: int | None, invalid: bool) -> str:
        words = self.template
        parts = {
            "observation": state,
            "invalid": words.invalid if invalid else "",
            "actions_left": fill(words.actions_left, {"actions_left": actions_left}),
            "format": self.reply_format,
            "length": fill(words.length, {"max_tokens": self.max_tokens}),
        }
        return fill(words.state, parts)


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

    @property
    def template(self) -> PromptTemplate:
        """The words of prompts."""

    @property
    def generation(self) -> Generation:
        """Which RAGEN is meant; with its quirks, symbols and actions are those of the type's default configuration."""


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
    words = settings.template
    rules, game = words.instruction, _game(tag, entry, settings.generation)
    actions = _actions(rules, game, settings.action_sep, entry.get("max_actions_per_traj"))
    paragraphs = [
        _own_instruction(tag, entry, words),
        _symbols(rules, game),
        actions,
        _limits(rules, settings.max_actions_per_turn, entry.get("max_actions_per_traj")),
    ]
    return TagPrompt(
        instruction=control.defuse(words.joined(paragraphs, rules.join)),
        reply_format=words.reply_format.think if settings.enable_think else words.reply_format.answer,
        max_tokens=entry.get("max_tokens") or settings.response_length,
        template=words,
    )


def _own_instruction(tag: str, entry: Mapping[str, Any], words: PromptTemplate) -> str:
    """The tag's own instruction; the prompts' one in its place where it is the one that comes with this package."""
    own = str(entry.get("env_instruction") or "")
    other = words.instructions.get(tag)
    return own if other is None or own.strip() not in ("", shipped_instructions().get(tag, "")) else other


@cache
def shipped_instructions() -> dict[str, str]:
    """The instruction of each tag of this package's own ``envs.yaml``."""
    from ragen.llm_agent.config.loading import config_directory

    entries = from_yaml((config_directory() / "envs.yaml").read_text("utf-8"))["custom_envs"]
    return {tag: str(entry.get("env_instruction") or "").strip() for tag, entry in entries.items()}


def _game(tag: str, entry: Mapping[str, Any], generation: Generation) -> Any:
    """What the instruction describes: the game as configured, or as its type is by default with the tag's own keys."""
    configured = _env_config(tag, entry, generation)
    if not generation.quirks or isinstance(configured, SimpleNamespace):
        return configured
    try:
        default = type(configured)()
    except TypeError:  # it has fields without defaults, and RAGEN could not tell it
        return configured
    return SimpleNamespace(**{**vars(default), **entry})


def _env_config(tag: str, entry: Mapping[str, Any], generation: Generation) -> Any:
    """The environment's configuration as it will be built, or its bare fields where it has no class."""
    env_type, given = entry.get("env_type"), entry.get("env_config") or {}
    if not isinstance(env_type, str):
        raise ConfigError(f"custom_envs.{tag}.env_type is {env_type!r}; expected the name of an environment type.")
    if not isinstance(given, Mapping):
        raise ConfigError(f"custom_envs.{tag}.env_config is {given!r}; expected a mapping of fields, or null.")
    known = env_type in REGISTERED_ENV_CONFIGS
    config_class = REGISTERED_ENV_CONFIGS[env_type] if known else resolve_env(env_type)[1]
    if config_class is None or not _describes(config_class):
        return SimpleNamespace(**{str(name): value for name, value in given.items()})
    try:
        return config_class(**generation.env_fields(env_type, given))
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"custom_envs.{tag}.env_config does not fit {config_class.__name__}: {error}.") from error


def _describes(config_class: type) -> bool:
    """Whether a configuration may have what an instruction tells; another one, which may look for files, is left."""
    if not is_dataclass(config_class):
        return True
    return any(field.name in ("grid_vocab", "action_lookup", "observation_format") for field in fields(config_class))


def _symbols(rules: InstructionTemplate, game: Any) -> str:
    """What each symbol of the grid means; where the observation shows no grid, what its coordinates are."""
    if getattr(game, "observation_format", "grid") == "coord":
        return rules.coordinates
    vocabulary = getattr(game, "grid_vocab", None)
    if not vocabulary:
        return ""
    symbols = [fill(rules.symbol, {"symbol": symbol, "meaning": meaning}) for symbol, meaning in vocabulary.items()]
    return fill(rules.symbols, {"symbols": rules.symbol_join.join(symbols)})


def _actions(rules: InstructionTemplate, game: Any, separator: str, per_trajectory: int | None) -> str:
    lookup = getattr(game, "action_lookup", None)
    if not lookup:
        return ""
    names = rules.action_join.join(str(name) for name in lookup.values())
    return fill(rules.actions, {"actions": names, "action_sep": separator, "max_actions": per_trajectory})


def _limits(rules: InstructionTemplate, per_turn: int | None, per_trajectory: int | None) -> str:
    texts = [fill(rules.turn_limit, {"count": per_turn}), fill(rules.episode_limit, {"count": per_trajectory})]
    limits = rules.limit_join.join(filter(None, texts))
    return fill(rules.limits, {"limits": limits}) if limits else ""
