"""The command ``python train.py [--config-name NAME] [key=value ...]``.

``trainer.backend`` selects the trainer: ``tiny`` is :mod:`ragen.training.trainer`, which trains a model from scratch on
a CPU; ``verl`` is verl's own trainer. Each is a function of the composed configuration in a module that is imported
only when used.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ragen.commands import STOPPED, CommandParser
from ragen.config import (
    add_config_arguments,
    add_sweep_argument,
    as_config,
    compose,
    find_config,
    main_of,
    override_key,
)
from ragen.errors import ConfigError, MissingExtraError, one_line

if TYPE_CHECKING:
    from ragen.config import Config

PROG = "python train.py"
DEFAULT_CONFIG = "base"  # of train.py, as in RAGEN
LAPTOP_CONFIG = "tiny"  # of `ragen train`, which must work without a GPU
BACKEND = "trainer.backend"

BACKENDS = {
    "tiny": "ragen.training.trainer:train",
    "verl": "ragen.agent_loop:train",
}
"""The trainers: functions of the configuration by ``trainer.backend``. Their result may have ``finished``."""


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Train a model on rollouts in environments. The configuration tiny needs no GPU and no download: "
        "a few minutes on a laptop.",
        examples=(
            f"{prog} --config-name tiny",
            f"{prog} --config-name _2_sokoban",
            f"{prog} --config-name tiny trainer.seed=1 output_dir=outputs/second",
        ),
    )
    add_config_arguments(top, DEFAULT_CONFIG if prog == PROG else LAPTOP_CONFIG)
    add_sweep_argument(top)
    return top


def _run(config: Config) -> int:
    outcome = trainer(config)(config)
    return 0 if getattr(outcome, "finished", True) else STOPPED


def composed(name: str, overrides: Sequence[str], folder: str | None = None) -> Any:
    """The configuration; ``trainer.backend`` and, with verl, any key of its sections need no ``+``.

    Args:
        name: The configuration's name.
        overrides: ``key=value`` in Hydra's syntax.
        folder: Its folder; None for the package's own.

    Raises:
        ConfigError: It cannot be composed.
    """
    try:
        config = compose(name, overrides, folder)
    except ConfigError as error:
        find_config(name, folder)  # its error suggests configurations with similar names
        from ragen.agent_loop import allow_verl_keys

        chosen = [each for each in overrides if override_key(each) == BACKEND]
        if _backend(compose(name, chosen, folder)) != "verl":
            raise error from None
        config = compose(name, allow_verl_keys(overrides), folder)
    if _backend(config) == "verl":
        from omegaconf import OmegaConf

        said = [*map(override_key, overrides)]
        OmegaConf.update(config, "agent_loop.said", said, force_add=True)
    return config


def _backend(config: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.select(config, BACKEND, default="verl")


def trainer(config: Any) -> Callable[[Any], Any]:
    """The function that ``trainer.backend`` selects; verl's by default.

    Raises:
        ConfigError: There is no such trainer, or its packages are not installed.
    """
    name = as_config(config).trainer.backend
    module, _, function = BACKENDS[name].partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except MissingExtraError:
        raise
    except ImportError as error:
        raise ConfigError(f"{BACKEND} = {name!r}, which cannot be imported: {one_line(error)}.") from error


main = main_of(parser, PROG, _run, composed)
"""Runs the command; returns the exit code: 0, 1 if training failed, 2 for an invalid configuration, 130 if stopped."""
