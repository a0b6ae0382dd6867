"""Questions that are answered with a search engine; generated ones are followed from passage to passage."""

from __future__ import annotations

import re
from random import Random

from ragen.env.search.world import solve
from ragen.llm_agent.backends.policies.base import Plan, Policy
from ragen.llm_agent.backends.prompt import Prompt


class SearchPolicy(Policy):
    """Looks up one name after the other; of questions that are not generated it answers with a name that it found."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        action = solve(prompt.told or prompt.state)
        if action is None or action in prompt.said:
            return self.guess(prompt, rng)
        return Plan("The question leads me there.", (_as_asked(action, prompt),))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        names = re.findall(r"\b[A-Z]\w{2,}(?: [A-Z]\w+)*", prompt.state) or ["nothing"]
        verb = "answer" if prompt.said and rng.random() < 0.5 else "search"
        return Plan("It may be this.", (_as_asked(f"{verb}[{rng.choice(names)}]", prompt),))


def _as_asked(action: str, prompt: Prompt) -> str:
    """The action in RAGEN's words where the environment asks for these."""
    return action.replace("answer[", "finish[", 1) if "finish[<answer>]" in prompt.state else action
