"""The settings of the context manager; see :mod:`ragen.config.schema` for the keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.config.loading import as_config, refused
from ragen.errors import ConfigError
from ragen.llm_agent.prompts.templates import DEFAULT_PROMPTS, PromptTemplate

FULL, LIMITED, SINGLE = WINDOW_MODES = ("full", "limited_multi_turn", "single_turn")
SAMPLED, TEXT = TRAINING_TOKENS = ("sampled", "text")
MAX_MODEL_LEN = "actor_rollout_ref.rollout.max_model_len"
RESPONSE_LENGTH = "actor_rollout_ref.rollout.response_length"
TOKEN_CHARACTERS = 32  # far more than tokens have on average; a server's tokenizer is unknown


@dataclass(frozen=True)
class ContextSettings:
    """The settings of the context manager.

    Attributes:
        enable_think: Whether replies think before they answer.
        action_sep: The separator of actions in a reply.
        max_actions_per_turn: Further actions of a reply are dropped; None keeps all.
        window: Maximum number of turns in a context; None for all.
        window_mode: ``full``: a trajectory is one row, with loss on all its replies. ``limited_multi_turn``: every
            turn is a row like its prompt, with loss on its reply. ``single_turn``: the same, but earlier turns are
            summarized in the single user message.
        use_turn_scores: Whether each turn's reward is at the end of that turn's reply.
        training_tokens: ``sampled``: training rows have the tokens of prompts and replies, if known, with loss only on
            those that the model sampled. With ``window_mode: full``, a trajectory has a row for every run of turns
            whose prompts extend each other token by token. ``text``: rows are tokenized chats, one per trajectory or
            turn, with loss also on the tag before and the end after each reply, as in RAGEN.
        grouping: The trajectories to normalize together.
        method: Normalization of scores.
        template: The texts of prompts.
        enable_response_mask: Whether the loss excludes the environments' texts.
        response_length: Maximum number of tokens of one reply; None if unknown.
        max_model_len: Maximum number of tokens of a context with its reply; None for no limit.
        template_kwargs: Passed to the chat template.
        failed_trajectories: The part without weight if an environment failed; see :mod:`ragen.validity`.
    """

    enable_think: bool = True
    action_sep: str = "||"
    max_actions_per_turn: int | None = None
    window: int | None = None
    window_mode: str = FULL
    use_turn_scores: bool = False
    training_tokens: str = TEXT
    grouping: str = "state"
    method: str = "identity"
    template: PromptTemplate = DEFAULT_PROMPTS
    enable_response_mask: bool = True
    response_length: int | None = None
    max_model_len: int | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    failed_trajectories: str = "mask"

    @classmethod
    def read(cls, config: Any) -> ContextSettings:
        """Read and check the keys.

        Args:
            config: The whole configuration, as a mapping or from OmegaConf.

        Raises:
            ConfigError: A key has an invalid value.
        """
        whole = as_config(config)
        keys, rollout = whole.agent_proxy, whole.actor_rollout_ref.rollout
        if keys.max_context_window == 0:
            raise refused("agent_proxy.max_context_window", 0, "at least 1, or -1 for all turns")
        template = DEFAULT_PROMPTS if keys.prompts is None else PromptTemplate.load(keys.prompts)
        if keys.system_prompt is not None:
            template = template.model_copy(update={"system": keys.system_prompt})
        settings = cls(
            enable_think=keys.enable_think,
            action_sep=keys.action_sep,
            max_actions_per_turn=keys.max_actions_per_turn,
            window=keys.max_context_window if keys.max_context_window > 0 else None,
            window_mode=keys.context_window_mode,
            use_turn_scores=keys.use_turn_scores,
            training_tokens=keys.training_tokens,
            grouping=keys.reward_normalization.grouping,
            method=keys.reward_normalization.method,
            template=template
            if keys.system_prompt is None
            else template.model_copy(update={"system": keys.system_prompt}),
            enable_response_mask=whole.enable_response_mask,
            response_length=rollout.response_length,
            max_model_len=rollout.max_model_len,
            template_kwargs=whole.data.apply_chat_template_kwargs,
            failed_trajectories=whole.es_manager.failed_trajectories,
        )
        settings.check()
        return settings

    def check(self) -> None:
        """Check the combination of values.

        Raises:
            ConfigError: It is invalid.
        """
        if self.use_turn_scores and self.method != "identity":
            raise ConfigError(
                f"agent_proxy.reward_normalization.method is {self.method!r} with agent_proxy.use_turn_scores: true; "
                "normalization compares whole trajectories, so expected 'identity' with turn scores."
            )
        if self.max_model_len is not None and self.prompt_limit is not None and self.prompt_limit < 1:
            raise ConfigError(
                f"{RESPONSE_LENGTH} is {self.response_length}, which leaves nothing of {MAX_MODEL_LEN}="
                f"{self.max_model_len} for the prompt; expected a smaller number."
            )

    @property
    def prompt_limit(self) -> int | None:
        """Maximum number of tokens of a prompt, which leaves room for its reply; None for no limit."""
        return None if self.max_model_len is None else self.max_model_len - (self.response_length or 0)

    @property
    def reply_limit(self) -> int | None:
        """Maximum number of characters of a reply; None for no limit.

        Backends stop at ``response_length`` tokens. This limit keeps a server that does not stop from filling all later
        prompts.
        """
        tokens = self.max_model_len if self.response_length is None else self.response_length
        return None if tokens is None else tokens * TOKEN_CHARACTERS
