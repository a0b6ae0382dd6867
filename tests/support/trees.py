"""Rollouts of trees without a model: three games, a scripted actor that remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ragen.llm_agent.backends import Reply, create_backend
from ragen.llm_agent.rollout.actor import BackendActor
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from ragen.llm_agent.tokenizer import LightTokenizer
from support.episodes import backend as kind_of_workers

TOKENIZER = LightTokenizer()
GAMES = ["SimpleSokoban", "FrozenLake", "Bandit"]


@cache
def base() -> Any:
    """Three games, a group of two each, four turns, a third of the replies thoughtless."""
    from omegaconf import OmegaConf

    from ragen.llm_agent.config.loading import load_config

    part = [
        f"es_manager.{mode}.{key}"
        for mode in ("train", "val")
        for key in (
            *(f"env_configs.tags=[{','.join(GAMES)}]", "env_configs.n_groups=[1,1,1]", "env_groups=3"),
            "group_size=2",
        )
    ]
    usual = ["agent_proxy.max_turn=4", "agent_proxy.branching.when=every_turn", "agent_proxy.branching.max_leaves=5"]
    workers = ["es_manager.use_multiprocessing=false", "es_manager.max_workers=2", "es_manager.crash_report_dir=null"]
    replies = ["actor.scripted.random=0.35", "actor.scripted.malformed=0.1"]
    config = load_config("base", [*part, *usual, *workers, *replies])
    OmegaConf.set_struct(config, False)  # keys may be given that it does not show
    return config


def configuration(*overrides: str) -> Any:
    from omegaconf import OmegaConf

    changes = OmegaConf.from_dotlist([f"es_manager.backend={kind_of_workers()}", *overrides])
    return OmegaConf.merge(base(), changes)


class Asked(BackendActor):
    """The scripted actor; remembers what it was asked."""

    def __init__(
        self,
        config: Any,
        fails: frozenset[tuple[int, int]] = frozenset(),
        before: Callable[[Any], None] = lambda requests: None,
    ) -> None:
        super().__init__(create_backend(config, TOKENIZER), config, TOKENIZER)
        self.requests: list[Any] = []
        generate = self.backend.generate

        def remembering(requests: Any, sampling: Any) -> list[Reply]:
            before(requests)
            self.requests += requests
            return [
                Reply("", error="lost") if (request.env_id, request.turn) in fails else reply
                for request, reply in zip(requests, generate(requests, sampling), strict=True)
            ]

        self.backend.generate = remembering  # type: ignore[method-assign]


def played(config: Any, on_turn: Any = None, actor: Any = None) -> list[dict[str, Any]]:
    """The states of a rollout for training."""
    with LLMAgentProxy(config, actor or Asked(config), TOKENIZER) as proxy:
        told = None if on_turn is None else lambda turn, _: on_turn(proxy.train_es_manager, turn)
        return proxy.play({}, on_turn=told)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The records that a run has written."""
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text("utf-8").splitlines()]
