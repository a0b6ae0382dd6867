"""The configuration of the context manager and of collapse detection, typed and checked.

All keys are optional; those of the context manager:

====================================================  ==============  ================================================
key                                                   default         meaning
====================================================  ==============  ================================================
``agent_proxy.enable_think``                          true            replies think before they answer
``agent_proxy.action_sep``                            ``||``          separates actions
``agent_proxy.max_actions_per_turn``                  null            further actions of a reply are dropped
``agent_proxy.max_context_window``                    -1              number of turns that a context shows; -1: all
``agent_proxy.context_window_mode``                   ``full``        see :class:`ContextSettings`
``agent_proxy.use_turn_scores``                       false           each turn's reward at the end of its reply
``agent_proxy.training_tokens``                       ``text``        or ``sampled``, see :class:`ContextSettings`
``agent_proxy.reward_normalization.grouping``         ``state``       ``state``, ``batch`` or ``inductive``
``agent_proxy.reward_normalization.method``           ``identity``    or ``mean``, ``mean_std``, ``asym_clip``
``agent_proxy.system_prompt``                         the prompts'    the system message; omitted if empty
``agent_proxy.prompts``                               null            a file of prompts that replace ours
``enable_response_mask``                              true            loss on replies only; false: on states too
``actor_rollout_ref.rollout.response_length``         null            maximum tokens of one reply
``actor_rollout_ref.rollout.max_model_len``           null            maximum tokens of a context with its reply, for
                                                                      which the oldest turns are left out; base.yaml
                                                                      sets 3600
``data.apply_chat_template_kwargs``                   none            passed to the chat template
====================================================  ==============  ================================================

Replies of servers that far exceed ``response_length`` are cut off (:attr:`ContextSettings.reply_limit`), if either
length is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ragen.errors import ConfigError
from ragen.llm_agent.batches.normalization import GROUPINGS, METHODS
from ragen.llm_agent.prompts.templates import DEFAULT_PROMPTS, PromptTemplate
from ragen.settings import key, read, refused, setting
from ragen.validity import MASK, POLICIES, POLICY_KEY

FULL, LIMITED, SINGLE = WINDOW_MODES = ("full", "limited_multi_turn", "single_turn")
SAMPLED, TEXT = TRAINING_TOKENS = ("sampled", "text")
MAX_MODEL_LEN = "actor_rollout_ref.rollout.max_model_len"
RESPONSE_LENGTH = "actor_rollout_ref.rollout.response_length"
MAX_ACTIONS = "agent_proxy.max_actions_per_turn"
SEPARATOR = "agent_proxy.action_sep"
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
        grouping: Which trajectories are normalized together.
        method: How scores are normalized.
        template: The texts of prompts.
        enable_response_mask: Whether the loss excludes the environments' texts.
        response_length: Maximum number of tokens of one reply; None if unknown.
        max_model_len: Maximum number of tokens of a context with its reply; None for no limit.
        template_kwargs: Passed to the chat template.
        failed_trajectories: What has no weight if an environment failed; see :mod:`ragen.validity`.
    """

    SECTION: ClassVar[str] = "agent_proxy"
    enable_think: bool = key(True)
    action_sep: str = key("||", SEPARATOR)
    max_actions_per_turn: int | None = key(None, MAX_ACTIONS)
    window: int | None = None
    window_mode: str = key(FULL, "agent_proxy.context_window_mode", allowed=WINDOW_MODES)
    use_turn_scores: bool = key(False)
    training_tokens: str = key(TEXT, allowed=TRAINING_TOKENS)
    grouping: str = key("state", "agent_proxy.reward_normalization.grouping", allowed=GROUPINGS)
    method: str = key("identity", "agent_proxy.reward_normalization.method", allowed=METHODS)
    template: PromptTemplate = DEFAULT_PROMPTS
    enable_response_mask: bool = key(True, "enable_response_mask")
    response_length: int | None = key(None, RESPONSE_LENGTH)
    max_model_len: int | None = key(None, MAX_MODEL_LEN)
    template_kwargs: dict[str, Any] = key({}, "data.apply_chat_template_kwargs")
    failed_trajectories: str = key(MASK, POLICY_KEY, allowed=POLICIES)

    @classmethod
    def read(cls, config: Any) -> ContextSettings:
        """Read and check the keys.

        Args:
            config: The whole configuration, as a mapping or from OmegaConf.

        Raises:
            ConfigError: A key has an invalid value.
        """
        window = setting(config, "agent_proxy.max_context_window", int, -1)
        if window == 0:
            raise ConfigError(
                "configuration key 'agent_proxy.max_context_window' is 0, but a prompt shows at least the newest turn; "
                "expected at least 1, or -1 for all turns."
            )
        settings = read(cls, config, template=_template(config), window=window if window > 0 else None)
        settings.check()
        return settings

    def check(self) -> None:
        """Check the combination of values.

        Raises:
            ConfigError: It is invalid.
        """
        if not self.action_sep.strip():
            raise ConfigError(f"{SEPARATOR} is {self.action_sep!r}; expected a text that is not blank, such as '||'.")
        if self.max_actions_per_turn is not None and self.max_actions_per_turn < 1:
            raise ConfigError(
                f"{MAX_ACTIONS} is {self.max_actions_per_turn}; expected at least 1, or null for no limit."
            )
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


def _template(config: Any) -> PromptTemplate:
    """The texts of prompts, by default or from a file, with the configured system message if there is one."""
    path = setting(config, "agent_proxy.prompts", str, None)
    template = DEFAULT_PROMPTS if path is None else PromptTemplate.load(path)
    system = setting(config, "agent_proxy.system_prompt", str, None)
    return template if system is None else template.with_system(system)


@dataclass(frozen=True)
class CollapseSettings:
    """The settings of collapse detection: the keys under ``collapse_detection``, with RAGEN's names and defaults.

    RAGEN's ``micro_batch_size`` is ignored: the number of thoughts that are scored at a time depends on their length.

    Attributes:
        first_turn: Whether to sample first turns, and to add their columns to batches.
        all_turns: The same for all turns.
        every: Training steps from one measurement to the next; the first step is always measured.
        samples: Maximum number of pairs of a prompt and a thought in a sample; None for no limit.
        std_eps: Added to the standard deviation by which a z-score is divided.
        ema_decay: Weight of the previous value in the moving averages.
    """

    first_turn: bool = key(False, "collapse_detection.first_turn_enabled")
    all_turns: bool = key(False, "collapse_detection.multi_turn_enabled")
    every: int = key(10, "collapse_detection.compute_freq", low=1)
    samples: int | None = None
    std_eps: float = key(1e-3, "collapse_detection.std_eps", low=0)
    ema_decay: float = key(0.9, "collapse_detection.ema_decay", low=0, high=1)

    @classmethod
    def read(cls, config: Any) -> CollapseSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        name = "collapse_detection.num_samples"
        samples = setting(config, name, object, "all")
        if samples != "all" and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
            raise refused(name, samples, "a whole number of at least 1, or 'all'")
        return read(cls, config, samples=None if samples == "all" else samples)

    def __bool__(self) -> bool:
        return self.first_turn or self.all_turns
