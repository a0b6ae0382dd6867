"""Shared functions of backends that work on tokens: checks of prompts, padding, and the end of replies.

Token in, token out: such a backend takes a prompt's tokens and returns the tokens that it sampled. Neither is converted
to text and back, which would not always yield the same tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError, InputError
from ragen.llm_agent.backends.base import Reply, Request

if TYPE_CHECKING:
    pass

MAX_MODEL_LEN = "actor_rollout_ref.rollout.max_model_len"


def prompt_ids(request: Request) -> list[int]:
    """A request's prompt as tokens.

    Raises:
        InputError: It was not tokenized.
    """
    if request.prompt_ids is None:
        raise InputError(
            f"the prompt of env {request.env_id} has no tokens; this backend answers what "
            "ContextManager.get_lm_inputs makes, with input_ids."
        )
    return list(request.prompt_ids)


def unanswerable(request: Request, max_tokens: int, context: int | None) -> Reply | None:
    """The reply to a prompt that is empty or leaves no room in the model's context; None if it fits."""
    length = len(prompt_ids(request))
    if not length:
        return Reply("", error="the prompt is empty, and a model needs at least one token")
    if context is None or length + max_tokens <= context:
        return None
    return Reply(
        "",
        out_of_context=f"the prompt has {length} tokens, a reply up to {max_tokens}, and the model's context ends at "
        f"{context}",
    )


def check_context(wanted: int | None, context: int | None, model: str) -> None:
    """Check that the configured contexts fit into the model.

    Args:
        wanted: ``actor_rollout_ref.rollout.max_model_len``, None if unlimited.
        context: The model's context length, None if unknown.
        model: Its name.

    Raises:
        ConfigError: They do not fit.
    """
    if wanted is not None and context is not None and wanted > context:
        raise ConfigError(
            f"configuration key {MAX_MODEL_LEN!r} is {wanted}, and the context of model {model!r} ends at {context} "
            "tokens; expected at most that."
        )


def end_ids(tokenizer: Any, *others: int | Sequence[int] | None) -> set[int]:
    """The tokens that end a reply: the tokenizer's end token, and those of the model's configuration."""
    ends = {tokenizer.eos_token_id}
    for other in others:
        ends.update([other] if isinstance(other, int) else other or [])
    return ends - {None}


def cut_at_end(ids: Sequence[int], ends: Collection[int]) -> list[int]:
    """A row of sampled tokens up to and including the first end token; the rest is padding."""
    place = next((place for place, token in enumerate(ids) if token in ends), len(ids) - 1)
    return list(ids[: place + 1])
