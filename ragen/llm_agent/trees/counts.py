"""What a rollout's trees cost, beside what the same trajectories would have cost as chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragen.llm_agent.tokens.sampled_tokens import Exchange, raw_reply
from ragen.llm_agent.trees.lineage import Forest


def tree_metrics(forest: Forest, caches: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Counts over a whole rollout.

    Args:
        forest: Of the caches.
        caches: Rollout caches.

    Returns:
        ``tree/trees``, ``tree/leaves``, ``tree/points`` (where trajectories part), ``tree/turns`` (played, each once),
        ``tree/chain_turns`` (of all leaves, each from the reset), and :func:`token_counts` under ``tree/``.
    """
    nodes = forest.nodes.values()
    counts = {
        "trees": sum(node.parent is None for node in nodes),
        "leaves": len(nodes),
        "points": len(forest.points),
        "turns": sum(node.played - node.turn for node in nodes),
        "chain_turns": sum(node.played for node in nodes),
    }
    return {f"tree/{name}": float(count) for name, count in (counts | token_counts(forest, caches)).items()}


def token_counts(forest: Forest, caches: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The tokens that the actor was asked with and answered; a prompt counts once, however many replies it got.

    Args:
        forest: Of the caches.
        caches: Rollout caches.

    Returns:
        ``prompt_tokens`` and ``response_tokens``, and ``chain_prompt_tokens`` and ``chain_response_tokens``, what as
        many chains of the same turns take. Nothing where tokens of some reply are unknown.
    """
    by_id = {cache["env_id"]: cache for cache in caches}
    asked: set[Any] = set()
    counts = dict.fromkeys(("prompt_tokens", "response_tokens", "chain_prompt_tokens", "chain_response_tokens"), 0)
    for node in forest.nodes.values():
        for turn in range(node.played):
            exchange = raw_reply(by_id[node.env_id]["history"][turn]).exchange
            if exchange is None or not exchange.has_tokens:
                return {}
            prompt, reply = sizes(exchange)
            counts["chain_prompt_tokens"] += prompt
            counts["chain_response_tokens"] += reply
            if turn < node.turn:
                continue
            counts["response_tokens"] += reply
            point = forest.point(node.env_id, turn)
            if point not in asked:
                asked.add(point)
                counts["prompt_tokens"] += prompt
    return counts


def sizes(exchange: Exchange) -> tuple[int, int]:
    """How many tokens a prompt and its reply have."""
    return len(exchange.prompt_ids or ()), len(exchange.reply_ids or ())


def weighted(values: Mapping[int, float], forest: Forest) -> float:
    """The mean of a value over leaves, each as much as it stands for.

    Args:
        values: By env_id, of some leaves; at least one.
        forest: The trees.
    """
    total = sum(forest.weights[env_id] for env_id in values)
    return sum(forest.weights[env_id] * value for env_id, value in values.items()) / total
