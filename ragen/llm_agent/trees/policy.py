"""Decides where to branch, and how widely: a pure function of the turns so far, and thus independent of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ragen.errors import InputError, described_with_place
from ragen.llm_agent.config.branching import AFTER_TURN, ENTROPY, EVERY_TURN, BranchingSettings


class OpenNode(NamedTuple):
    """An environment before its next reply; the argument of a custom function.

    Attributes:
        env_id: The environment.
        tree: The root of its tree.
        tag: The environment's tag.
        turn: Number of turns played.
        surprise: The mean of ``-log p`` over the tokens of its last reply, in nats, an estimate of the entropy of
            their distributions; None before the first reply, or without log-probabilities.
        history: Its turns and current state, as in a rollout cache; read only.
    """

    env_id: int
    tree: int
    tag: str
    turn: int
    surprise: float | None
    history: Sequence[Mapping[str, Any]]


class Use(NamedTuple):
    """The size of a tree.

    Attributes:
        leaves: Number of its trajectories.
        tokens: Number of tokens of its prompts and replies, each counted once.
    """

    leaves: int
    tokens: int


def widths(nodes: Sequence[OpenNode], used: Mapping[int, Use], settings: BranchingSettings) -> list[int]:
    """The number of replies to request at each node; 1 means no branching.

    If a tree has not enough room for all its nodes, they share it in turns, one more reply each.

    Args:
        nodes: The nodes of one turn.
        used: The size of each tree.
        settings: The settings of branching.

    Raises:
        InputError: A custom function raised or returned an invalid value; or ``entropy`` lacks
            log-probabilities.
    """
    wanted = [_wanted(node, settings) for node in nodes]
    room = {tree: settings.max_leaves - use.leaves for tree, use in used.items()}
    if settings.budget_tokens is not None:
        room |= {tree: 0 for tree, use in used.items() if use.tokens >= settings.budget_tokens}
    given = [1] * len(nodes)
    for width in range(2, min(max(wanted, default=1), settings.max_leaves) + 1):
        for place, node in enumerate(nodes):
            if wanted[place] >= width and room[node.tree] > 0:
                given[place] = width
                room[node.tree] -= 1
    return given


def _wanted(node: OpenNode, settings: BranchingSettings) -> int:
    width = settings.width
    if settings.decide is not None:
        return _decided(node, settings.when, settings.decide, width)
    splits = {
        EVERY_TURN: lambda: True,
        AFTER_TURN: lambda: node.turn in settings.turns,
        ENTROPY: lambda: node.turn > 0 and _surprise(node) >= settings.threshold,
    }
    return width if splits[settings.when]() else 1


def _surprise(node: OpenNode) -> float:
    if node.surprise is None:
        raise InputError(
            f"agent_proxy.branching.when is {ENTROPY!r}, and the actor did not return the log-probabilities of the "
            f"reply of env_id = {node.env_id}, turn {node.turn}; use an actor that does (hf, vllm), or another 'when'."
        )
    return node.surprise


def _decided(node: OpenNode, path: str, decide: Callable[[OpenNode], Any], width: int) -> int:
    try:
        answer = decide(node)
    except Exception as error:
        raise InputError(
            f"{path}, which agent_proxy.branching.when names, raised for env_id = {node.env_id}, turn {node.turn}: "
            f"{described_with_place(error)}"
        ) from error
    if isinstance(answer, bool):
        return width if answer else 1
    if isinstance(answer, int) and answer >= 1:
        return answer
    raise InputError(
        f"{path}, which agent_proxy.branching.when names, answered {answer!r} for env_id = {node.env_id}; expected "
        "true, false, or how many replies to ask for, at least 1."
    )
