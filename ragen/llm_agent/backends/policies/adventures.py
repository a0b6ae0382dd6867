"""Text adventures, whose states list what can be done."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from ragen.env.alfworld.player import solve as household
from ragen.env.textworld.player import solve as adventure
from ragen.env.textworld.text import admissible_in
from ragen.llm_agent.backends.policies.base import Plan, Policy
from ragen.llm_agent.backends.prompt import Prompt

_TURN = re.compile(r"(?:^|\n)Turn \d+:\nState:\n")


def states_of(prompt: Prompt) -> list[str]:
    """All states that the chat still shows, the newest last."""
    return _TURN.split(prompt.told)[1:] or [prompt.state]


class _Reading(Policy):
    """Reads all states, and asks a player what leads on."""

    solve: Callable[[Sequence[str], Sequence[str]], str | None]

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        action = type(self).solve(states_of(prompt), prompt.said)
        return self.guess(prompt, rng) if action is None else Plan("This leads on.", (action,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        commands = admissible_in(prompt.state) or ["look"]
        return Plan("I try something.", (rng.choice(commands),))


class TextWorldPolicy(_Reading):
    """Looks through all rooms, follows recipes, and takes what is asked for."""

    solve = staticmethod(adventure)


class AlfWorldPolicy(_Reading):
    """Looks into one receptacle after the other for what the task names."""

    solve = staticmethod(household)
