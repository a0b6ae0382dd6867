"""Policies for text tasks: adventures, programs and commands, searches, the web shop and web pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from ragen.env.alfworld.player import solve as household
from ragen.env.code.families import solve as program_for
from ragen.env.miniwob.solver import elements_of
from ragen.env.miniwob.solver import solve as page_action
from ragen.env.search.world import solve as next_lookup
from ragen.env.terminal.env import SUBMIT
from ragen.env.terminal.families import solve as command_for
from ragen.env.textworld.player import solve as adventure
from ragen.env.textworld.text import admissible_in
from ragen.env.webshop.solver import plan_actions, read_view, search_words
from ragen.llm_agent.backends.policies.base import Plan, Policy, UnreadableError
from ragen.llm_agent.backends.prompt import Prompt

# TextWorld and ALFWorld


_TURN = re.compile(r"(?:^|\n)Turn \d+:\nState:\n")


def states_of(prompt: Prompt) -> list[str]:
    """All states that the chat still contains, the newest last."""
    return _TURN.split(prompt.chat)[1:] or [prompt.state]


class _Reading(Policy):
    """Reads all states, and passes them to a rule-based player."""

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
    """Explores all rooms, follows recipes, and takes the requested items."""

    solve = staticmethod(adventure)


class AlfWorldPolicy(_Reading):
    """Searches one receptacle after the other for the object that the task names."""

    solve = staticmethod(household)


# Code and terminal


class CodePolicy(Policy):
    """Knows the solutions of generated problems; for others it submits a trivial program."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        program = program_for(prompt.chat or prompt.state)
        return self.guess(prompt, rng) if program is None else Plan("I know how to do this.", (program,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        value = rng.choice(("0", "[]", "args[0]", "sorted(args[0])", "sum(args[0])"))
        _, _, after = (prompt.chat or prompt.state).rpartition("function `")
        name = after.partition("(")[0] or "answer"
        return Plan("It may be this.", (f"def {name}(*args):\n    return {value}",))


class TerminalPolicy(Policy):
    """Solves a generated task with one command and submits; in other tasks it looks around first."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        command = command_for(prompt.chat or prompt.state)
        if command is not None and command not in prompt.said:
            return Plan("This command does it.", (command,))
        return Plan("That was all.", (SUBMIT,)) if prompt.said else self.guess(prompt, rng)

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        looks = ("ls -la", "find . -type f | sort | head -n 20", "head -n 3 *", "pwd", SUBMIT)
        return Plan("I look around.", (rng.choice(looks),))


# Search


class SearchPolicy(Policy):
    """Looks up one name after the other; answers other than generated questions with a name that it found."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        action = next_lookup(prompt.chat or prompt.state)
        if action is None or action in prompt.said:
            return self.guess(prompt, rng)
        return Plan("The question leads me there.", (_as_asked(action, prompt),))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        names = re.findall(r"\b[A-Z]\w{2,}(?: [A-Z]\w+)*", prompt.state) or ["nothing"]
        verb = "answer" if prompt.said and rng.random() < 0.5 else "search"
        return Plan("It may be this.", (_as_asked(f"{verb}[{rng.choice(names)}]", prompt),))


def _as_asked(action: str, prompt: Prompt) -> str:
    """The action in RAGEN's syntax if the environment uses it."""
    return action.replace("answer[", "finish[", 1) if "finish[<answer>]" in prompt.state else action


# WebShop


class ShopPolicy(Policy):
    """Searches, opens a product, chooses what was asked for and buys."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        done = {action.strip() for answer in prompt.said for action in answer.split("||")}
        todo = [action for action in plan_actions(prompt.state) if action not in done]
        if not todo:
            return self.guess(prompt, rng)
        return Plan("This comes closest to what is asked for.", tuple(todo[: prompt.limit]))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        view = read_view(prompt.state)
        if not view.actions:
            raise UnreadableError("no actions in the state")
        action = rng.choice(view.actions)
        return Plan("I look around.", (action.replace("<content>", search_words(view.instruction)),))


# MiniWoB++


class MiniWobPolicy(Policy):
    """Reads the task and the numbered elements."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        action = page_action(prompt.state)
        return self.guess(prompt, rng) if action is None else Plan("The task says so.", (action,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        numbers = [element.number for element in elements_of(prompt.state)] or [1]
        return Plan("I try this one.", (f"click[{rng.choice(numbers)}]",))
