"""The command ``ragen eval [key=value ...]``: a model behind a server, on the same seeds as every other model.

It is ``ragen rollout`` with another configuration where none is named: ``evaluate_api_llm``, which goes on where it was
when it is called again.
"""

from __future__ import annotations

import argparse

from ragen.commands import CommandParser
from ragen.llm_agent.config.command_line import (
    add_choice_arguments,
    add_config_arguments,
    add_models_argument,
    add_sweep_argument,
    main_of,
)
from ragen.llm_agent.rollout.command import add_raw_argument, add_verbose_argument, run

PROG = "ragen eval"
DEFAULT_CONFIG = "evaluate_api_llm"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Evaluate a model behind an OpenAI-compatible server. "
        "After an interruption, the same command resumes.",
        examples=(
            f"{prog} actor.base_url=http://localhost:8000/v1 actor.model=NAME",
            f"OPENAI_API_KEY=... {prog} actor.model=gpt-4o-mini report=true",
        ),
    )
    add_config_arguments(top, DEFAULT_CONFIG)
    add_models_argument(top)
    add_sweep_argument(top)
    add_choice_arguments(top)
    add_raw_argument(top)
    add_verbose_argument(top)
    return top


main = main_of(parser, PROG, run)
"""Runs the command; its exit codes are those of :data:`ragen.llm_agent.rollout.command.main`."""
