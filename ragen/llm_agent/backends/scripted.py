"""The backend without a model, for demonstrations: it solves a few games, and elsewhere plays examples of actions.

:data:`~ragen.llm_agent.backends.policies.POLICIES` has the games that it solves from their prompts. Other environments
are asked for an ``example_action``; without one, it chooses among the actions or examples that the prompt names.

A configured fraction of replies is malformed, another is well-formed but random, so that parsing and penalties see the
same kinds of replies as with a model. Each reply depends only on the prompt, the environment's id and state, the turn
and ``actor.scripted.seed``, not on the order or size of batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Self

from ragen.config.loading import as_config, refused
from ragen.llm_agent.backends.base import Backend, Reply, Request, Sampling
from ragen.llm_agent.backends.policies import POLICIES, Plan, decide, read_prompt, text_of


class ScriptedBackend(Backend):
    """Answers every prompt with a policy for its environment.

    Attributes:
        example: Asks an environment for an ``example_action``, by its id; "" for none. Players set it.
    """

    title = "scripted policies"

    def __init__(
        self,
        env_types: Mapping[str, str],
        malformed: float = 0.05,
        random: float = 0.1,
        seed: int = 0,
        max_actions_per_turn: int = 5,
        action_sep: str = "||",
        enable_think: bool = True,
    ) -> None:
        """Store the settings.

        Args:
            env_types: Tag to environment type; for other tags, actions are chosen among those named in the prompt.
            malformed: Fraction of replies that cannot be parsed.
            random: Fraction of replies that are well-formed but random.
            seed: Decides which replies those are.
            max_actions_per_turn: Maximum number of actions of a reply.
            action_sep: Separator between actions.
            enable_think: Whether replies begin with a thought.
        """
        self.env_types = dict(env_types)
        self.malformed = malformed
        self.random = random
        self.seed = seed
        self.max_actions_per_turn = max_actions_per_turn
        self.action_sep = action_sep
        self.enable_think = enable_think
        self.example: Callable[[int, Random], str] = lambda env_id, rng: ""

    @classmethod
    def from_config(cls, config: Any, tokenizer: Any = None) -> Self:
        """See :meth:`Backend.from_config`; the keys are those under ``actor.scripted`` and ``agent_proxy``."""
        whole = as_config(config)
        keys, proxy = whole.actor.scripted, whole.agent_proxy
        if keys.malformed + keys.random > 1:
            raise refused("actor.scripted.random", keys.random, f"at most 1 - malformed = {1 - keys.malformed:g}")
        return cls(
            env_types={tag: entry.env_type for tag, entry in whole.custom_envs.items()},
            malformed=keys.malformed,
            random=keys.random,
            seed=keys.seed,
            max_actions_per_turn=proxy.max_actions_per_turn or 5,
            action_sep=proxy.action_sep,
            enable_think=proxy.enable_think,
        )

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Reply]:
        """See :meth:`Backend.generate`; ``sampling`` is ignored."""
        return [Reply(self.answer(request)) for request in requests]

    def answer(self, request: Request) -> str:
        """The reply to one request."""
        rng = self._rng(request)
        prompt = read_prompt(request.messages, self.max_actions_per_turn)
        env_type = self.env_types.get(request.tag, "")
        kind = rng.random()
        if kind < self.malformed:
            return self._malformed(decide(env_type, prompt, rng, thoughtful=False), rng)
        is_thoughtful = kind >= self.malformed + self.random
        if is_thoughtful and env_type not in POLICIES and (action := self.example(request.env_id, rng)):
            return self.write(Plan("This may lead on.", (action,)))
        return self.write(decide(env_type, prompt, rng, is_thoughtful))

    def write(self, plan: Plan) -> str:
        """A plan as a well-formed reply."""
        answer = f"<answer>{f' {self.action_sep} '.join(plan.actions)}</answer>"
        return f"<think>{plan.thought}</think>{answer}" if self.enable_think else answer

    def _malformed(self, plan: Plan, rng: Random) -> str:
        action = plan.actions[0]
        kinds = (
            f"{plan.thought} So I say {action}.",
            f"<think>{plan.thought}",
            f"<think>{plan.thought}</think><answer>{action}",
            f"<think>{plan.thought}</think><answer></answer>",
            "",
        )
        return rng.choice(kinds)

    def _rng(self, request: Request) -> Random:
        chat = "\x1e".join(f"{message['role']}\x1f{text_of(message)}" for message in request.messages)
        key = f"{self.seed}\x1d{request.env_id}\x1d{request.turn}\x1d{chat}"
        return Random(hashlib.sha256(key.encode()).digest())

    def close(self) -> None:
        """See :meth:`Backend.close`; there is nothing to release."""
