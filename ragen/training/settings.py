"""The keys under ``trainer`` that ``trainer.backend: tiny`` reads, checked once and given types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.branching import without_idle
from ragen.llm_agent.config.generation import Generation
from ragen.llm_agent.config.loading import flat_settings, setting
from ragen.llm_agent.config.reading import choice, count, texts
from ragen.llm_agent.config.report import wants_report
from ragen.llm_agent.rollout.rollout_file import ONLY_HOW_FAST
from ragen.training.filtering import FilterSettings
from ragen.training.model_settings import TinyModelSettings, WarmUpSettings
from ragen.training.tracking import LOGGERS, check_loggers
from ragen.training.update_settings import UpdateSettings

AUTO, DISABLE = "auto", "disable"
MODES = ("train", "val")
DECISIVE = (
    *("trainer.seed", "trainer.reward_sign", "tiny_model", "warm_up", "algorithm", "actor_rollout_ref", "critic"),
    *("seed", "agent_proxy", "es_manager.format_penalty", *(f"es_manager.{mode}" for mode in MODES)),
    *("actor.tokenizer", "actor.model"),
)


@dataclass(frozen=True)
class TrainerSettings:
    """How long to train, what to write and where; names are verl's where verl has them.

    Attributes:
        folder: ``output_dir``: checkpoints, metrics and the learning curve go there.
        seed: Decides the first weights, what is drawn and in which order it is learnt.
        steps: ``total_training_steps`` after the warm-up.
        test_freq: Steps between two validations; 0: only at the beginning and the end.
        save_freq: Steps between two checkpoints, also while warming up; 0: only at the end and when stopped.
        keep: ``max_ckpt_to_keep``; 0 keeps all.
        resume: ``resume_mode``: ``auto`` goes on from the newest checkpoint in ``folder``; ``disable`` begins anew, and
            sets aside the checkpoints that are there.
        loggers: ``logger``: names of :data:`~ragen.training.tracking.LOGGERS`.
        project: ``project_name``, for Weights & Biases.
        report: Whether to write ``report.html``; see :mod:`ragen.llm_agent.report`.
        threads: Of torch. One is fastest for a model as small as this.
        model: The model's size.
        warm_up: How it is warmed up.
        filters: Which groups are trained on.
        updates: How.
    """

    folder: Path
    seed: int
    steps: int
    test_freq: int
    save_freq: int
    keep: int
    resume: str
    loggers: tuple[str, ...]
    project: str
    report: bool
    threads: int
    model: TinyModelSettings
    warm_up: WarmUpSettings
    filters: FilterSettings
    updates: UpdateSettings

    @classmethod
    def read(cls, config: Any) -> TrainerSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work, or a logger's package is missing.
        """
        if Generation.read(config).quirks:
            raise ConfigError(
                "quirks is true, which builds batches as RAGEN's own trainer wants them; expected false here, where "
                "masks and scores have to be right."
            )
        loggers = texts(config, "trainer.logger", ("console",), LOGGERS)
        check_loggers(loggers)
        return cls(
            folder=Path(setting(config, "output_dir", str, "outputs")),
            seed=count(config, "trainer.seed", 0),
            steps=count(config, "trainer.total_training_steps", 100),
            test_freq=count(config, "trainer.test_freq", 10),
            save_freq=count(config, "trainer.save_freq", 25),
            keep=count(config, "trainer.max_ckpt_to_keep", 3),
            resume=choice(config, "trainer.resume_mode", AUTO, (AUTO, DISABLE)),
            loggers=loggers,
            project=setting(config, "trainer.project_name", str, "ragen"),
            report=wants_report(config, is_served=False),
            threads=count(config, "trainer.threads", 1, low=1),
            model=TinyModelSettings.read(config),
            warm_up=WarmUpSettings.read(config),
            filters=FilterSettings.read(config),
            updates=UpdateSettings.read(config),
        )


def about_training(config: Any) -> dict[str, Any]:
    """All that decides what is learnt and how it is measured, as flat keys.

    How long to train, what to write and how often, and what only decides how fast, is left out.

    Raises:
        ConfigError: A key cannot be read.
    """
    tags = {tag for mode in MODES for tag in setting(config, f"es_manager.{mode}.env_configs.tags", Sequence)}
    about = flat_settings(config, (*DECISIVE, *(f"custom_envs.{tag}" for tag in sorted(tags))))
    about |= Generation.read(config).about
    return {key: value for key, value in without_idle(about).items() if not key.startswith(ONLY_HOW_FAST)}
