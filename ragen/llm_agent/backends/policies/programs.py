"""Environments that are answered with programs and commands; generated tasks are read back from their texts."""

from __future__ import annotations

from random import Random

from ragen.env.code.families import solve as program_for
from ragen.env.terminal.env import SUBMIT
from ragen.env.terminal.families import solve as command_for
from ragen.llm_agent.backends.policies.base import Plan, Policy
from ragen.llm_agent.backends.prompt import Prompt


class CodePolicy(Policy):
    """Knows the solutions of generated problems; of others it tries a program that seldom is one."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        program = program_for(prompt.told or prompt.state)
        return self.guess(prompt, rng) if program is None else Plan("I know how to do this.", (program,))

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        value = rng.choice(("0", "[]", "args[0]", "sorted(args[0])", "sum(args[0])"))
        _, _, after = (prompt.told or prompt.state).rpartition("function `")
        name = after.partition("(")[0] or "answer"
        return Plan("It may be this.", (f"def {name}(*args):\n    return {value}",))


class TerminalPolicy(Policy):
    """Does a generated task with one command and submits; in others it looks around first."""

    def plan(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.plan`."""
        command = command_for(prompt.told or prompt.state)
        if command is not None and command not in prompt.said:
            return Plan("This command does it.", (command,))
        return Plan("That was all.", (SUBMIT,)) if prompt.said else self.guess(prompt, rng)

    def guess(self, prompt: Prompt, rng: Random) -> Plan:
        """See :meth:`Policy.guess`."""
        looks = ("ls -la", "find . -type f | sort | head -n 20", "head -n 3 *", "pwd", SUBMIT)
        return Plan("I look around.", (rng.choice(looks),))
