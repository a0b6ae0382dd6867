"""The command ``ragen eval [key=value ...]``: a model behind a server, on the same seeds as every other model.

It is ``ragen rollout`` of a model behind a server, by default with the configuration ``evaluate_api_llm``. The same
command called again resumes, with any configuration.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from ragen.commands import CommandParser
from ragen.config.command_line import (
    main_of,
)
from ragen.config.loading import DATED, override_key
from ragen.errors import ConfigError
from ragen.llm_agent.rollout.command import add_arguments, composed, run

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
    add_arguments(top, DEFAULT_CONFIG)
    return top


def compose(name: str, overrides: Sequence[str] = (), directory: str | None = None) -> Any:
    """A configuration, in which a model behind a server is evaluated unless it says otherwise.

    Keys that neither it nor an override sets are those of ``evaluate_api_llm``: ``actor.backend``, ``resume``, and
    an ``output_dir`` named after the model, here also after the configuration.

    Args:
        name: The configuration's name or path.
        overrides: Hydra's overrides.
        directory: The folder to search first; None is the package's own.

    Raises:
        ConfigError: It cannot be composed.
    """
    from omegaconf import OmegaConf

    config = composed(name, overrides, directory)
    written: Any = OmegaConf.to_container(config, resolve=False)
    given = {*map(override_key, overrides)}
    own = ("actor.backend", "scripted", "openai"), ("resume", False, True)
    folder = "output_dir", DATED, f"outputs/evaluate/${{actor.model}}/{Path(name).stem}"
    for key, default, value in (*own, folder):
        if key not in given and reduce(lambda held, part: held[part], key.split("."), written) == default:
            OmegaConf.update(config, key, value)
    is_asked = "actor.model" not in given and OmegaConf.select(config, "actor.backend") == "openai"
    if is_asked and OmegaConf.select(config, "actor.model") is None:
        raise ConfigError("actor.model is missing: expected the server's name for the model, as in actor.model=NAME.")
    return config


main = main_of(parser, PROG, run, compose)
"""Runs the command; its exit codes are those of :data:`ragen.llm_agent.rollout.command.main`."""
