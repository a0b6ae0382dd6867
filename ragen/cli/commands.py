"""The list of commands and their modules."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple


class Command(NamedTuple):
    """A command of ``ragen``.

    Attributes:
        name: Its name, typed after ``ragen``.
        summary: One line for the list of commands.
        module: Has ``parser(prog)``, and ``main(argv, prog)``, which returns the exit code.
    """

    name: str
    summary: str
    module: str

    @property
    def prog(self) -> str:
        """Its name in help and messages."""
        return f"ragen {self.name}"

    def parser(self) -> ArgumentParser:
        """Its command line."""
        return import_module(self.module).parser(self.prog)

    def run(self, argv: Sequence[str]) -> int:
        """Run it with these arguments; returns the exit code."""
        from envlanes.interrupts import interrupts_held  # late, since help needs none of it

        with interrupts_held():  # an import that Ctrl-C ends may swallow it, or raise an error of its own
            module = import_module(self.module)
        return module.main(list(argv), self.prog)


GROUPS = {
    "models": (
        Command("rollout", "play one rollout and write its trajectories", "ragen.llm_agent.rollout.command"),
        Command("eval", "evaluate a model behind an OpenAI-compatible server", "ragen.llm_agent.rollout.evaluation"),
        Command("compare", "compare two evaluations, seed by seed", "ragen.results.compare"),
        Command("report", "write an HTML report of a run, finished or not", "ragen.results.page"),
        Command("train", "train a model on rollouts", "ragen.training.command"),
    ),
    "environments": (
        Command("list", "list environments with their cost per turn, configurations, backends", "ragen.cli.listing"),
        Command("new", "create a template environment with its test", "ragen.cli.new"),
        Command("check", "check that an environment works in worker processes", "ragen.tools.check"),
        Command("play", "play an environment by hand, or a crash report to its failure", "ragen.tools.play"),
        Command("serve", "serve environments over OpenEnv's WebSocket and HTTP", "ragen.serve.command"),
    ),
    "this installation": (
        Command("suite", "prove that rollouts in workers equal sequential ones", "ragen.llm_agent.testing.suite"),
    ),
}
"""By what they are for, in the order in which they are listed."""

COMMANDS = {command.name: command for group in GROUPS.values() for command in group}
