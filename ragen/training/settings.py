"""The keys of ``trainer.backend: tiny``, checked and typed before torch is imported.

They concern the run (``trainer``), the model (``tiny_model``), its warm-up (``warm_up``), and the update by GRPO or PPO
(with verl's names).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ragen.llm_agent.config import CollapseSettings, decisive_settings
from ragen.llm_agent.filtering import AdvantageWeights, GroupFilter
from ragen.settings import choice, key, number, read, refused, setting

# The model and its warm-up


@dataclass(frozen=True)
class TinyModelSettings:
    """The size of the model; the keys are those under ``tiny_model``, named as in ``Qwen2Config``.

    Attributes:
        hidden_size: Width.
        num_hidden_layers: Layers.
        num_attention_heads: Heads of each layer.
        intermediate_size: Width of the layers' inner part.
        max_position_embeddings: Maximum context length in tokens.
        initializer_range: Standard deviation of the initial weights. At this size the usual 0.02 hardly learns.
        rope_theta: Base of the rotary position embedding. A small one distinguishes neighbors in a short context; with
            the usual 10000 this model does not learn to read a grid.
    """

    SECTION: ClassVar[str] = "tiny_model"
    hidden_size: int = key(64, low=1)
    num_hidden_layers: int = key(2, low=1)
    num_attention_heads: int = key(4, low=1)
    intermediate_size: int = key(256, low=1)
    max_position_embeddings: int = key(2048, low=1)
    initializer_range: float = key(0.08, low=0)
    rope_theta: float = key(20.0, low=1)

    @classmethod
    def read(cls, config: Any) -> TinyModelSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        settings = read(cls, config)
        if settings.hidden_size % (2 * settings.num_attention_heads):
            raise refused(
                "tiny_model.hidden_size",
                settings.hidden_size,
                f"a multiple of twice tiny_model.num_attention_heads={settings.num_attention_heads}",
            )
        return settings


@dataclass(frozen=True)
class WarmUpSettings:
    """The settings of the warm-up; the keys are those under ``warm_up``.

    Attributes:
        steps: Optimizer steps; 0 skips the warm-up.
        groups: Number of distinct initial states in the demonstrations, split among the tags like the training groups.
        batch_size: Demonstrations per step.
        lr: Learning rate; it rises over the first tenth of the steps and falls along a cosine to a twentieth.
        random: Fraction of thoughtless replies.
        malformed: Fraction of malformed replies.
        seed: Seed of the first demonstrated start.
    """

    SECTION: ClassVar[str] = "warm_up"
    steps: int = key(300, low=0)
    groups: int = key(512, low=1)
    batch_size: int = key(32, low=1)
    lr: float = key(3e-3, low=0)
    random: float = key(0.5, low=0, high=1)
    malformed: float = key(0.02, low=0, high=1)
    seed: int = key(1_000_000, low=0)


# Updates


GAE = "gae"
ESTIMATORS = ("grpo", "rloo", GAE)
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
_ACTOR = "actor_rollout_ref.actor"


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
        weights: Weights of advantages; see :class:`ragen.llm_agent.filtering.AdvantageWeights`.
    """

    estimator: str = key("grpo", "algorithm.adv_estimator", allowed=ESTIMATORS)
    normalise_by_std: bool = key(True, "algorithm.norm_adv_by_std_in_grpo")
    gamma: float = key(1.0, "algorithm.gamma", low=0, high=1)
    lam: float = key(1.0, "algorithm.lam", low=0, high=1)
    lr: float = key(3e-4, f"{_ACTOR}.optim.lr", low=0)
    critic_lr: float = key(1e-3, "critic.optim.lr", low=0)
    grad_clip: float = key(1.0, f"{_ACTOR}.grad_clip", low=0)
    epochs: int = key(1, f"{_ACTOR}.ppo_epochs", low=1)
    mini_batch_size: int = key(128, f"{_ACTOR}.ppo_mini_batch_size", low=1)
    max_tokens: int = key(16_384, f"{_ACTOR}.ppo_max_token_len_per_gpu", low=1)
    clip_ratio_low: float = key(0.2, f"{_ACTOR}.clip_ratio_low", low=0)
    clip_ratio_high: float = key(0.2, f"{_ACTOR}.clip_ratio_high", low=0)
    aggregation: str = key("token-mean", f"{_ACTOR}.loss_agg_mode", allowed=AGGREGATIONS)
    entropy_coeff: float = key(0.0, f"{_ACTOR}.entropy_coeff")
    use_kl_loss: bool = key(False, f"{_ACTOR}.use_kl_loss")
    kl_loss_coef: float = key(0.001, f"{_ACTOR}.kl_loss_coef", low=0)
    kl_loss_type: str = key("low_var_kl", f"{_ACTOR}.kl_loss_type", allowed=("kl", "abs", "mse", "low_var_kl"))
    cliprange_value: float = key(0.5, "critic.cliprange_value", low=0)
    temperature: float = 1.0
    weights: AdvantageWeights = field(default_factory=AdvantageWeights)

    @classmethod
    def read(cls, config: Any) -> UpdateSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value, or asks for what RAGEN's own trainer alone does.
        """
        for name in _NOT_DONE:
            if value := setting(config, name, object, False):
                raise refused(name, value, "its default, since trainer.backend: tiny does not have it")
        clip = number(config, f"{_ACTOR}.clip_ratio", 0.2, 0.0)
        clips = {"default_clip_ratio_low": clip, "default_clip_ratio_high": clip}
        weights = AdvantageWeights.read(config)
        choice(config, f"{_ACTOR}.filter_loss_scaling", "none", ("none",))
        choice(config, "algorithm.filter_groups.metric", "reward", ("reward",))
        return read(cls, config, temperature=_temperature(config), weights=weights, **clips)


_NOT_DONE = (
    "algorithm.bi_level_gae",
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


def _temperature(config: Any) -> float:
    """The rollouts' temperature, if training can compute the probabilities with which replies are sampled."""
    rollout = "actor_rollout_ref.rollout"
    for name, kind, neutral in (("do_sample", bool, True), ("top_p", float, 1.0), ("top_k", float, -1.0)):
        value = setting(config, f"{rollout}.{name}", kind, neutral)
        if value != neutral:
            raise refused(
                f"{rollout}.{name}", value, f"{neutral}, since replies must be drawn from whole distributions"
            )
    temperature = number(config, f"{rollout}.temperature", 1.0, 0.0)
    if temperature == 0:
        raise refused(f"{rollout}.temperature", temperature, "a number above 0, since training needs sampled replies")
    return temperature


# The run


OF_RAGENS_TRAINER = (
    "algorithm.high_level_gamma",
    *(f"trainer.{name}" for name in ("experiment_name", "local_log_dir", "val_before_train", "validation_steps")),
    *(f"trainer.max_{role}_ckpt_to_keep" for role in ("actor", "critic")),
    *(f"trainer.{name}" for name in ("project_name", "log_group_rv_table", "generations_to_log_to_wandb")),
    *(f"trainer.gradient_analysis_{name}" for name in ("every", "env_groups", "group_size", "log_prefilter")),
    *(f"actor_rollout_ref.rollout.gradient_analysis_{name}" for name in ("num_buckets", "bucket_mode")),
)
"""Keys of RAGEN's trainer without an effect in this one."""
AUTO, DISABLE = "auto", "disable"
MODES = ("train", "val")
DECISIVE = (
    "trainer.seed",
    "trainer.reward_sign",
    "grpo_advantage_length_weight",
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

    SECTION: ClassVar[str] = "trainer"
    model: TinyModelSettings
    warm_up: WarmUpSettings
    filters: GroupFilter
    updates: UpdateSettings
    collapse: CollapseSettings
    folder: Path = key("outputs", "output_dir")
    seed: int = key(0, low=0)
    steps: int = key(100, "trainer.total_training_steps", low=0)
    test_freq: int = key(10, low=0)
    save_freq: int = key(25, low=0)
    keep: int = key(3, "trainer.max_ckpt_to_keep", low=0)
    resume: str = key(AUTO, "trainer.resume_mode", allowed=(AUTO, DISABLE))
    loggers: tuple[str, ...] = key(("console",), "trainer.logger", allowed=("console",))
    threads: int = key(1, low=1)
    is_dynamic: bool = key(False, "algorithm.filter_groups.enable")
    max_batches: int = key(0, "algorithm.filter_groups.max_num_gen_batches", low=-1)

    @classmethod
    def read(cls, config: Any) -> TrainerSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        settings = read(
            cls,
            config,
            model=TinyModelSettings.read(config),
            warm_up=read(WarmUpSettings, config),
            filters=GroupFilter.read(config),
            updates=UpdateSettings.read(config),
            collapse=CollapseSettings.read(config),
        )
        return replace(settings, folder=settings.folder.absolute())  # environments may change the working directory


def about_training(config: Any) -> dict[str, Any]:
    """The settings that determine the training and its measurements, as flat keys.

    The length of the training, its output, and settings that only affect speed are excluded.

    Raises:
        ConfigError: A key cannot be read.
    """
    tags = {tag for mode in MODES for tag in setting(config, f"es_manager.{mode}.env_configs.tags", Sequence)}
    return decisive_settings(config, (*DECISIVE, *(f"custom_envs.{tag}" for tag in sorted(tags))))
