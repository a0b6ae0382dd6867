"""Prompts of a trajectory, and parsing of its replies, made of the context manager's parts.

Rollouts by ``LLMAgentProxy`` and by verl's agent loops therefore show a model the same text, with one difference: the
proxy writes every prompt anew, with cleaned earlier replies, while a trajectory that is trained as one row
(``context_window_mode: full`` without a window) keeps earlier replies token by token as sampled.
"""

from __future__ import annotations

from typing import Any

from ragen.config.loading import as_config
from ragen.llm_agent.batches.encoding import ChatEncoder
from ragen.llm_agent.environments import custom_env
from ragen.llm_agent.prompts.conversation import (
    ConversationBuilder,
    Row,
    TagPrompt,
    prompt_rows,
    shortened,
    tag_prompt,
)
from ragen.llm_agent.prompts.replies import ControlTokens, ParsedReply, ReplyParser
from ragen.llm_agent.prompts.settings import FULL, ContextSettings

_REPLY = "zqreplyqz"  # placeholder for a reply when only the text after it matters


class Script:
    """Prompts, continuations and replies under one configuration.

    Attributes:
        settings: The context manager's settings.
        max_turn: Maximum number of turns of a trajectory.
        format_penalty: Added for a turn with invalid actions.
    """

    def __init__(self, config: Any, tokenizer: Any) -> None:
        """Read the context manager's keys, and analyze the chat template.

        Args:
            config: RAGEN's whole configuration.
            tokenizer: A fast tokenizer with a chat template.

        Raises:
            ConfigError: A key has an invalid value, or the tokenizer has no usable chat template.
        """
        self.settings = ContextSettings.read(config)
        self.max_turn = as_config(config).agent_proxy.max_turn
        self.format_penalty = as_config(config).es_manager.format_penalty
        self._config = config
        self._tokenizer = tokenizer
        self._control = ControlTokens.of(tokenizer)
        self._parser = ReplyParser(
            self._control, self.settings.enable_think, self.settings.action_sep, self.settings.max_actions_per_turn
        )
        self._encoder = ChatEncoder(
            tokenizer, self._control, self._parser.opening_tag, template_kwargs=self.settings.template_kwargs
        )
        self._prompts: dict[str, TagPrompt] = {}
        self._conversations = ConversationBuilder(
            self.settings, self._prompts, {}, self._control, self._parser.opening_tag
        )

    @property
    def is_one_row(self) -> bool:
        """Whether a trajectory is trained as one row rather than one row per turn."""
        return self.settings.window_mode == FULL and self.settings.window is None

    def prompt(self, rollout: dict[str, Any]) -> list[int]:
        """The tokens of the whole prompt for a trajectory's open turn, as the context manager writes it.

        Args:
            rollout: The rollout cache. If it is too long, the oldest turns are dropped.

        Raises:
            ConfigError: The rollout's tag is not a key of ``custom_envs``.
            InputError: A single turn is too long for the model.
        """
        self._learn_tag(rollout["tag"])
        row = prompt_rows([rollout], self.settings.window)[0]
        limit, tokens = self.settings.prompt_limit, self._encode(row)
        if limit is None or len(tokens) <= limit:
            return tokens
        return self._encode(shortened(row, limit, self.settings, lambda row: len(self._encode(row))))

    def continuation(self, rollout: dict[str, Any]) -> list[int]:
        """The tokens between the last reply's text and the reply to the open turn.

        They begin with the end of a reply and end with the start of the next one.

        Args:
            rollout: The rollout cache, with at least one played turn.
        """
        self._learn_tag(rollout["tag"])
        *earlier, asked = self._conversations.messages(prompt_rows([rollout], None)[0])
        system = [message for message in earlier if message["role"] == "system"]
        chat = [*system, {"role": "user", "content": "ask"}, {"role": "assistant", "content": _REPLY}, asked]
        text = self._encoder.template.render([chat], add_generation_prompt=True)[0].partition(_REPLY)[2]
        tag = self._parser.opening_tag
        text = text if text.rstrip().endswith(tag) else text + tag
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def read(self, tokens: list[int]) -> ParsedReply:
        """Parse a reply: decode its tokens, and parse the text into actions."""
        return self._parser.parse(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _encode(self, row: Row) -> list[int]:
        return self._encoder.prompts([self._conversations.messages(row)])[0].ids

    def _learn_tag(self, tag: str) -> None:
        if tag not in self._prompts:
            self._prompts[tag] = tag_prompt(tag, custom_env(self._config, tag), self.settings, self._control)
