"""The keys of ``trainer.backend: tiny``, checked and typed before torch is imported.

They concern the run (``trainer``), the model (``tiny_model``), its warm-up (``warm_up``), and the update by GRPO or PPO
(with verl's names).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.config import as_config, decisive_settings, one_of, refused
from ragen.llm_agent import CollapseSettings
from ragen.llm_agent.filtering import GroupFilter

if TYPE_CHECKING:
    from ragen.config import Config, TinyModel, WarmUp

# Updates


GAE = "gae"
ESTIMATORS = ("grpo", "rloo", GAE)
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class UpdateSettings:
    """The settings of updates; names and defaults are verl's.

    Attributes:
        estimator: ``algorithm.adv_estimator``: ``grpo``, ``rloo``, or ``gae``, which makes it PPO with a critic.
        normalise_by_std: ``algorithm.norm_adv_by_std_in_grpo``; false is Dr. GRPO (arXiv:2503.20783).
        gamma: Discount from token to token, for ``gae``.
        lam: GAE's lambda.
        lr: The actor's learning rate.
        critic_lr: The critic's learning rate.
        grad_clip: Maximum norm of gradients.
        epochs: Number of passes over the batch.
        mini_batch_size: Rows per optimizer step.
        max_tokens: Maximum number of tokens of a micro-batch, including padding.
        clip_ratio_low: PPO's clip range below 1.
        clip_ratio_high: PPO's clip range above 1.
        aggregation: The aggregation of token losses.
        entropy_coeff: Coefficient of the entropy bonus.
        use_kl_loss: Whether to add a KL penalty to the initial model.
        kl_loss_coef: Its coefficient.
        kl_loss_type: Its estimator.
        cliprange_value: Clip range of the critic's values.
        temperature: The sampling temperature.
    """

    estimator: str
    normalise_by_std: bool
    gamma: float
    lam: float
    lr: float
    critic_lr: float
    grad_clip: float
    epochs: int
    mini_batch_size: int
    max_tokens: int
    clip_ratio_low: float
    clip_ratio_high: float
    aggregation: str
    entropy_coeff: float
    use_kl_loss: bool
    kl_loss_coef: float
    kl_loss_type: str
    cliprange_value: float
    temperature: float = 1.0

    @classmethod
    def read(cls, config: Any) -> UpdateSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value, or asks for what RAGEN's own trainer alone does.
        """
        whole = as_config(config)
        for name in _NOT_DONE:
            if value := whole.select(name):
                raise refused(name, value, "its default, since trainer.backend: tiny does not have it")
        keys, algorithm, critic = whole.actor_rollout_ref.actor, whole.algorithm, whole.critic
        one_of(f"{_ACTOR}.filter_loss_scaling", keys.filter_loss_scaling, ("none",))
        one_of("algorithm.filter_groups.metric", algorithm.filter_groups.metric or "reward", ("reward",))
        low, high = keys.clip_ratio_low, keys.clip_ratio_high
        return cls(
            estimator=one_of("algorithm.adv_estimator", algorithm.adv_estimator, ESTIMATORS),
            normalise_by_std=algorithm.norm_adv_by_std_in_grpo,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            lr=3e-4 if keys.optim.lr is None else keys.optim.lr,
            critic_lr=1e-3 if critic.optim.lr is None else critic.optim.lr,
            grad_clip=keys.grad_clip,
            epochs=keys.ppo_epochs,
            mini_batch_size=keys.ppo_mini_batch_size,
            max_tokens=keys.ppo_max_token_len_per_gpu,
            clip_ratio_low=keys.clip_ratio if low is None else low,
            clip_ratio_high=keys.clip_ratio if high is None else high,
            aggregation=one_of(f"{_ACTOR}.loss_agg_mode", keys.loss_agg_mode, AGGREGATIONS),
            entropy_coeff=keys.entropy_coeff,
            use_kl_loss=keys.use_kl_loss,
            kl_loss_coef=keys.kl_loss_coef,
            kl_loss_type=one_of(f"{_ACTOR}.kl_loss_type", keys.kl_loss_type, ("kl", "abs", "mse", "low_var_kl")),
            cliprange_value=critic.cliprange_value,
            temperature=_temperature(whole),
        )


_NOT_DONE = (
    "algorithm.bi_level_gae",
    "algorithm.soft_advantage_reweight",
    "algorithm.zero_task_advantage",
    "actor_rollout_ref.actor.grpo_advantage_length_weight",
    "grpo_advantage_length_weight",
    "algorithm.use_kl_in_reward",
    "reward_model.enable",
    "trainer.critic_warmup",
    "trainer.val_only",
    "actor_rollout_ref.model.lora_rank",
    "trainer.gradient_analysis_mode",
    "trainer.gradient_analysis_only",
    "trainer.exit_after_gradient_analysis",
    "report",
)
"""Keys of other trainers that change what is learned or written, and that the tiny trainer does not have."""


def _temperature(config: Config) -> float:
    """The rollouts' temperature, if training can compute the probabilities with which replies are sampled."""
    keys = config.actor_rollout_ref.rollout
    for name, neutral in (("do_sample", True), ("top_p", 1.0), ("top_k", -1)):
        if (value := getattr(keys, name)) not in (None, neutral):
            raise refused(f"{_ROLLOUT}.{name}", value, f"{neutral}: replies must be drawn from whole distributions")
    if keys.temperature == 0:
        raise refused(f"{_ROLLOUT}.temperature", 0, "a number above 0, since training needs sampled replies")
    return 1.0 if keys.temperature is None else keys.temperature


# The run


AUTO, DISABLE = "auto", "disable"
DECISIVE = (
    "trainer.seed",
    "trainer.reward_sign",
    "tiny_model",
    "warm_up",
    "algorithm",
    "actor_rollout_ref",
    "critic",
    "seed",
    "agent_proxy",
    "es_manager.format_penalty",
    "es_manager.train",
    "es_manager.val",
    "actor.tokenizer",
    "actor.model",
)


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of a run; names are verl's if verl has them.

    Attributes:
        folder: ``output_dir``, the folder of checkpoints, metrics and the learning curve; absolute.
        seed: Determines the initial weights, the sampling, and the order of training rows.
        steps: ``total_training_steps`` after the warm-up.
        test_freq: Steps between two validations; 0: only at the beginning and the end.
        save_freq: Steps between two checkpoints, also while warming up; 0: only at the end and when stopped.
        keep: ``max_ckpt_to_keep``; 0 keeps all.
        resume: ``resume_mode``: ``auto`` resumes from the newest checkpoint in ``folder``; ``disable`` starts over, and
            moves existing checkpoints aside.
        loggers: ``logger``: ``console`` or none; other trackers are verl's.
        threads: Threads of torch. One is fastest for a model as small as this.
        is_dynamic, max_batches: Whether groups without variance are replaced by further sampling, and for how long; see
            :mod:`ragen.training.filtering`.
        model: The model's size.
        warm_up: The warm-up.
        filters: The choice of groups.
        updates: The updates.
        collapse: ``collapse_detection``: whether thoughts depend on prompts, measured every few steps.
    """

    model: TinyModel
    warm_up: WarmUp
    filters: GroupFilter
    updates: UpdateSettings
    collapse: CollapseSettings
    folder: Path
    seed: int
    steps: int
    test_freq: int
    save_freq: int
    keep: int
    resume: str
    loggers: tuple[str, ...]
    threads: int
    is_dynamic: bool
    max_batches: int

    @classmethod
    def read(cls, config: Any) -> TrainerSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        whole = as_config(config)
        keys, filters = whole.trainer, whole.algorithm.filter_groups
        loggers = [keys.logger] if isinstance(keys.logger, str) else keys.logger
        for logger in loggers:
            one_of("trainer.logger", logger, ("console",))
        return cls(
            model=whole.tiny_model,
            warm_up=whole.warm_up,
            filters=GroupFilter.read(whole),
            updates=UpdateSettings.read(whole),
            collapse=CollapseSettings.read(whole),
            folder=Path(whole.output_dir).absolute(),  # environments may change the working directory
            seed=keys.seed,
            steps=keys.total_training_steps,
            test_freq=max(keys.test_freq, 0),
            save_freq=max(keys.save_freq, 0),
            keep=keys.max_ckpt_to_keep,
            resume=one_of("trainer.resume_mode", keys.resume_mode, (AUTO, DISABLE)),
            loggers=tuple(loggers),
            threads=keys.threads,
            is_dynamic=filters.enable,
            max_batches=filters.max_num_gen_batches or 0,
        )


def about_training(config: Any) -> dict[str, Any]:
    """The settings that determine the training and its measurements, as flat keys.

    The length of the training, its output, and settings that only affect speed are excluded.

    Raises:
        ConfigError: A key cannot be read.
    """
    modes = (whole := as_config(config)).es_manager.train, whole.es_manager.val
    tags = {tag for mode in modes if mode for tag in mode.env_configs.tags}
    return decisive_settings(whole, (*DECISIVE, *(f"custom_envs.{tag}" for tag in sorted(tags))))
