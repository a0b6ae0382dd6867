"""Starts verl's own trainer on RAGEN's environments: ``python train.py --config-name _2_sokoban trainer.backend=verl``.

verl's configuration is composed of four layers, each of which overrides the one before:

1. verl's ``ppo_trainer``, as installed;
2. ``config/agent_loop/trainer.yaml``, the requirements of the agent loop and sensible defaults;
3. lengths and paths, derived from RAGEN's keys;
4. the user's own ``actor_rollout_ref``, ``algorithm``, ``data``, ``trainer``, ...; keys unknown to verl are refused.

The user's whole configuration is included as the section ``ragen``, where the agent loop and the environment service
read it, since verl's own sections accept no other keys. The result is written to ``<output_dir>/verl.yaml``, from which
the standard command runs the same training, also on a cluster::

    python -m verl.trainer.main_ppo --config-path <output_dir> --config-name verl
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.agent_loop import dataset
from ragen.agent_loop.checks import check_environments
from ragen.agent_loop.verl_keys import sort_keys
from ragen.config.loading import as_config, compose, plain_sections
from ragen.config.schema import Config
from ragen.errors import ConfigError, install_command, one_line
from ragen.extras import check_installed
from ragen.files import config_directory
from ragen.llm_agent.prompts.settings import FULL, MAX_MODEL_LEN, RESPONSE_LENGTH, ContextSettings

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger(__name__)

FOLDER = "agent_loop"  # below the folder of configurations
PROMPT_LENGTH = 1024
FILE = "verl.yaml"
SAID = "agent_loop.said"  # keys that were given on the command line


def train(config: Any) -> None:
    """Train with verl, to the end.

    Args:
        config: RAGEN's whole configuration, with any of verl's keys in verl's sections.

    Raises:
        ConfigError: The configuration cannot work; nothing was started.
        MissingExtraError: A package is missing.
    """
    check_installed("verl", "verl's trainer with agent loops")
    trainer = trainer_config(config)
    check_trainer(trainer)
    path = prepare(trainer)
    log.info("verl's configuration is in %s", path)
    from verl.trainer import main_ppo

    main_ppo.main(trainer)


def trainer_config(config: Any) -> DictConfig:
    """The configuration of verl for a training on RAGEN's environments.

    Args:
        config: RAGEN's whole configuration.

    Raises:
        ConfigError: A key has an invalid value, or stands in one of verl's sections and verl has no such key.
    """
    from omegaconf import OmegaConf

    config = as_config(config)
    ragen = _resolved(config)
    check_environments(ragen)
    fitting = lengths(config)
    verl: Any = copy.deepcopy(_stock())
    said_of_verl = {name: ragen.pop(name) for name in list(ragen) if name in verl}
    sections = {name: section for name, section in said_of_verl.items() if section is not None}  # null says nothing
    free = _free_mappings(verl)
    ours = OmegaConf.merge(OmegaConf.load(config_directory() / FOLDER / "trainer.yaml"), fitting)
    written = dict(_leaves(_written(config.source, sections)))
    said = config.agent_loop.said
    values, ignored = sort_keys(sections, written, _stock_leaves(), dict(_leaves(_written(ours))), said)
    path = config.model_path or values.get("actor_rollout_ref.model.path")
    critic = (
        {} if path is None else {"critic": {"model": {"path": path, "tokenizer_path": path}}}
    )  # begins as the model
    OmegaConf.set_struct(verl, False)
    verl["ragen"] = {**ragen, **_context_keys(config)}
    verl = OmegaConf.merge(verl, ours, critic)
    OmegaConf.set_struct(verl, True)
    for key, value in values.items():
        _set(verl, key, value, free)
    if ignored:
        log.warning("ignored: %s (they have no effect here).", ", ".join(sorted(ignored)))
    validation = verl.actor_rollout_ref.rollout.val_kwargs
    if not validation.do_sample:
        validation.temperature = 0  # verl looks at these
    return verl


def lengths(config: Config) -> dict[str, Any]:
    """The lengths of prompts and responses for verl, and other values derived from RAGEN's keys.

    Raises:
        ConfigError: The lengths do not fit into the model's context.
    """
    settings = ContextSettings.read(config)
    whole, reply = settings.max_model_len, settings.response_length
    if whole is None or reply is None:
        missing = MAX_MODEL_LEN if whole is None else RESPONSE_LENGTH
        raise ConfigError(f"configuration key {missing!r} is missing; verl's trainer needs a number of tokens.")
    prompt, response = whole - reply, reply
    if settings.window_mode == FULL and settings.window is None:
        prompt = config.agent_loop.prompt_length
        response = whole - prompt
    if prompt < 1 or response < reply:
        raise ConfigError(
            f"agent_loop.prompt_length is {prompt}, which leaves {response} of {MAX_MODEL_LEN}={whole} for a "
            f"trajectory whose replies may have {reply} tokens each; expected a smaller number."
        )
    return {
        "data": {"max_prompt_length": prompt, "max_response_length": response},
        "actor_rollout_ref": {
            "actor": {"ppo_max_token_len_per_gpu": max(16384, whole)},
            "rollout": {
                "max_model_len": whole,
                "agent": {"agent_loop_config_path": str(config_directory() / FOLDER / "agent_loops.yaml")},
            },
        },
    }


def check_trainer(trainer: DictConfig) -> None:
    """Check that verl accepts its configuration, and that this machine can run it.

    Raises:
        ConfigError: It does not, or cannot.
    """
    from hydra.errors import HydraException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(
            config=trainer, use_reference_policy=need_reference_policy(trainer), use_critic=need_critic(trainer)
        )
    except (AssertionError, ValueError, HydraException) as error:
        raise ConfigError(f"verl refuses this configuration: {one_line(error)}") from error
    if os.environ.get("RAY_ADDRESS") or os.environ.get("VERL_PLATFORM"):
        return  # the training runs on other machines
    engine = trainer.actor_rollout_ref.rollout.name
    if engine in ("vllm", "sglang") and importlib.util.find_spec(engine) is None:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name is {engine!r}, which is not installed: pip install {engine}."
        )
    import torch

    if trainer.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "verl's trainer needs a GPU, and this machine has none (for a cluster, set RAY_ADDRESS); "
            "trainer.backend=tiny trains on a CPU."
        )


def prepare(trainer: DictConfig) -> Path:
    """Write the data sets and the trainer's configuration to the output folder; returns the configuration's path.

    Raises:
        ConfigError: They cannot be written.
    """
    from omegaconf import OmegaConf

    steps = trainer.trainer.total_training_steps or dataset.STEPS
    dataset.write(trainer.ragen, Path(trainer.data.train_files), "train", steps)
    dataset.write(trainer.ragen, Path(trainer.data.val_files), "val")
    path = Path(trainer.ragen.output_dir) / FILE
    path.write_text(OmegaConf.to_yaml(trainer), "utf-8")
    return path.resolve()


def allow_verl_keys(overrides: Sequence[str]) -> list[str]:
    """Overrides for Hydra in which verl's keys need no ``+``, although RAGEN's files lack them.

    Args:
        overrides: ``key=value`` as the user typed them.

    Raises:
        ConfigError: verl is not installed.
    """
    names = verl_sections()
    return [f"++{override}" if override.partition(".")[0] in names else override for override in overrides]


def verl_sections() -> list[str]:
    """The sections of verl's configuration."""
    return [str(name) for name in _stock()]


def _resolved(config: Config) -> dict[str, Any]:
    """The configuration as plain dicts, with absolute paths for other processes and nodes."""
    plain = plain_sections(config, {*Config.model_fields, *verl_sections()})
    plain["output_dir"] = str(Path(config.output_dir).absolute())
    if (reports := config.es_manager.crash_report_dir) is not None:
        plain["es_manager"]["crash_report_dir"] = str(Path(reports).absolute())
    return plain


def _context_keys(config: Config) -> dict[str, Any]:
    """The keys in verl's sections that are read here, with RAGEN's meaning."""
    rollout, template = config.actor_rollout_ref.rollout, config.data.apply_chat_template_kwargs
    lengths = {"response_length": rollout.response_length, "max_model_len": rollout.max_model_len}
    return {"actor_rollout_ref": {"rollout": lengths}, "data": {"apply_chat_template_kwargs": template}}


def _leaves(section: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and their values; an empty mapping is a value."""
    leaves: list[tuple[str, Any]] = []
    for name, value in section.items():
        key = f"{prefix}{name}"
        leaves += _leaves(value, f"{key}.") if isinstance(value, Mapping) and value else [(key, value)]
    return leaves


def _free_mappings(verl: DictConfig) -> tuple[str, ...]:
    """The keys whose mappings accept new keys: empty mappings that are passed to Ray or an engine unchanged."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(verl)
    return (*(key for key, value in _leaves(plain) if value == {}), "ray_kwargs.ray_init")


def _set(verl: DictConfig, key: str, value: Any, free: Sequence[str]) -> None:
    """Set a key, which verl must have."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    has, why = OmegaConf.select(verl, key, throw_on_resolution_failure=False), "expected a section of keys"
    if not isinstance(has, Mapping) or not has or value is None or isinstance(value, Mapping):
        try:
            OmegaConf.update(verl, key, value, force_add=any(key.startswith(f"{mapping}.") for mapping in free))
            return
        except OmegaConfBaseException as error:
            why = one_line(error)
    raise ConfigError(f"configuration key {key!r} is {value!r}, which verl does not take: {why}.")


def _written(config: Any, sections: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The named sections of a configuration, or all, with interpolations unresolved."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(OmegaConf.create(config), resolve=False)
    return plain if sections is None else {name: plain[name] for name in sections}


@cache
def _stock_leaves() -> dict[str, Any]:
    return dict(_leaves(_written(_stock())))


@cache
def _stock() -> DictConfig:
    """The installed verl's ``ppo_trainer``, composed once."""
    return compose("ppo_trainer", directory=_verl_directory())


def _verl_directory() -> Path:
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"trainer.backend is 'verl', and verl is not installed: {install_command('verl')}.")
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"
