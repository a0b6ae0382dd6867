"""The keys under ``trainer`` that ``trainer.backend: tiny`` reads, checked once and given types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ragen.errors import ConfigError
from ragen.llm_agent.config.branching import without_idle
from ragen.llm_agent.config.generation import Generation
from ragen.llm_agent.config.loading import flat_settings, setting
from ragen.llm_agent.config.report import wants_report
from ragen.llm_agent.filtering.tables import TableSettings
from ragen.llm_agent.rollout.rollout_file import ONLY_HOW_FAST
from ragen.llm_agent.tokens.collapse import CollapseSettings
from ragen.settings import key, read
from ragen.tracking import PACKAGES, check_loggers
from ragen.training.filtering import FilterSettings
from ragen.training.gradient_analysis import AnalysisSettings
from ragen.training.model_settings import TinyModelSettings, WarmUpSettings
from ragen.training.update_settings import UpdateSettings

AUTO, DISABLE = "auto", "disable"
MODES = ("train", "val")
DECISIVE = (
    *(
        "trainer.seed",
        "trainer.reward_sign",
        "grpo_advantage_length_weight",
        "tiny_model",
        "warm_up",
        "algorithm",
        "actor_rollout_ref",
        "critic",
    ),
    *("seed", "agent_proxy", "es_manager.format_penalty", *(f"es_manager.{mode}" for mode in MODES)),
    *("actor.tokenizer", "actor.model"),
)


@dataclass(frozen=True)
class TrainerSettings:
    """How long to train, what to write and where; names are verl's where verl has them.

    Attributes:
        folder: ``output_dir``: checkpoints, metrics and the learning curve go there.
        seed: Decides the first weights, what is drawn and in which order it is learned.
        steps: ``total_training_steps`` after the warm-up.
        test_freq: Steps between two validations; 0: only at the beginning and the end.
        save_freq: Steps between two checkpoints, also while warming up; 0: only at the end and when stopped.
        keep: ``max_ckpt_to_keep``; 0 keeps all.
        resume: ``resume_mode``: ``auto`` goes on from the newest checkpoint in ``folder``; ``disable`` begins anew, and
            sets aside the checkpoints that are there.
        loggers: ``logger``: names of :data:`ragen.tracking.PACKAGES`.
        project: ``project_name``, for trackers.
        report: Whether to write ``report.html``; see :mod:`ragen.llm_agent.report`.
        threads: Of torch. One is fastest for a model as small as this.
        model: The model's size.
        warm_up: How it is warmed up.
        filters: Which groups are trained on.
        updates: How.
        tables: Which tables are written.
        analysis: When gradients are looked at, bucket by bucket.
        collapse: ``collapse_detection``: whether thoughts depend on prompts, measured every few steps.
    """

    SECTION: ClassVar[str] = "trainer"
    model: TinyModelSettings
    warm_up: WarmUpSettings
    filters: FilterSettings
    updates: UpdateSettings
    collapse: CollapseSettings
    tables: TableSettings
    analysis: AnalysisSettings
    report: bool
    folder: Path = key("outputs", "output_dir")
    seed: int = key(0, low=0)
    steps: int = key(100, "trainer.total_training_steps", low=0)
    test_freq: int = key(10, low=0)
    save_freq: int = key(25, low=0)
    keep: int = key(3, "trainer.max_ckpt_to_keep", low=0)
    resume: str = key(AUTO, "trainer.resume_mode", allowed=(AUTO, DISABLE))
    loggers: tuple[str, ...] = key(("console",), "trainer.logger", allowed=tuple(PACKAGES))
    project: str = key("ragen", "trainer.project_name")
    threads: int = key(1, low=1)

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
        settings = read(
            cls,
            config,
            model=TinyModelSettings.read(config),
            warm_up=read(WarmUpSettings, config),
            filters=FilterSettings.read(config),
            updates=UpdateSettings.read(config),
            collapse=CollapseSettings.read(config),
            tables=read(TableSettings, config),
            analysis=AnalysisSettings.read(config),
            report=wants_report(config, is_served=False),
        )
        check_loggers(settings.loggers, "trainer.logger")
        return settings


def about_training(config: Any) -> dict[str, Any]:
    """All that decides what is learned and how it is measured, as flat keys.

    How long to train, what to write and how often, and what only decides how fast, is left out.

    Raises:
        ConfigError: A key cannot be read.
    """
    tags = {tag for mode in MODES for tag in setting(config, f"es_manager.{mode}.env_configs.tags", Sequence)}
    about = flat_settings(config, (*DECISIVE, *(f"custom_envs.{tag}" for tag in sorted(tags))))
    about |= Generation.read(config).about
    return {key: value for key, value in without_idle(about).items() if not key.startswith(ONLY_HOW_FAST)}
