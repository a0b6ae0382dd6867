"""How a batch becomes a step of GRPO or PPO: the keys that are read, by verl's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.generation import refuse_not_done
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.filtering.advantages import AdvantageWeights
from ragen.settings import key, number, read

GAE = "gae"
ESTIMATORS = ("grpo", "rloo", GAE)
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
_ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class UpdateSettings:
    """How a batch becomes a step; names and defaults are verl's.

    Attributes:
        estimator: ``algorithm.adv_estimator``: ``grpo``, ``rloo``, or ``gae``, which makes it PPO with a critic.
        normalise_by_std: ``algorithm.norm_adv_by_std_in_grpo``; false is Dr. GRPO (arXiv:2503.20783).
        gamma: Discount from token to token, for ``gae``.
        lam: GAE's lambda.
        lr: The actor's learning rate.
        critic_lr: The critic's.
        grad_clip: Gradients with a larger norm are scaled down to it.
        epochs: How often the batch is gone through.
        mini_batch_size: Rows of one step of the optimizer.
        max_tokens: Tokens of a micro-batch, padding included.
        clip_ratio_low: PPO's clip range below 1.
        clip_ratio_high: PPO's clip range above 1.
        aggregation: How token losses become one.
        entropy_coeff: How much entropy counts against the loss.
        use_kl_loss: Whether to hold the model near the one that the steps began with.
        kl_loss_coef: How much.
        kl_loss_type: How it is estimated.
        cliprange_value: How far the critic's values may move in a step.
        temperature: At which replies are drawn.
        weights: By what advantages are multiplied; see :mod:`ragen.llm_agent.filtering.advantages`.
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
            ConfigError: A key has a value that cannot work, or asks for what RAGEN's own trainer alone does.
        """
        refuse_not_done(config, "trainer.backend: tiny")
        clip = number(config, f"{_ACTOR}.clip_ratio", 0.2, 0.0)
        clips = {"default_clip_ratio_low": clip, "default_clip_ratio_high": clip}
        weights = AdvantageWeights.read(config)
        return read(cls, config, temperature=_temperature(config), weights=weights, **clips)


def _temperature(config: Any) -> float:
    """The rollouts' temperature, if training can compute the probabilities that replies are drawn with."""
    rollout = "actor_rollout_ref.rollout"
    if not setting(config, f"{rollout}.do_sample", bool, True):
        raise ConfigError(f"configuration key '{rollout}.do_sample' is False; training needs sampled replies.")
    for name, neutral in (("top_p", 1.0), ("top_k", -1.0)):
        value = setting(config, f"{rollout}.{name}", float, neutral)
        if value != neutral:
            raise ConfigError(
                f"configuration key '{rollout}.{name}' is {value:g}; expected {neutral:g}: training computes the "
                "probabilities of whole distributions, and replies must be drawn from them."
            )
    temperature = number(config, f"{rollout}.temperature", 1.0, 0.0)
    if temperature == 0:
        raise ConfigError(f"configuration key '{rollout}.temperature' is 0; training needs sampled replies.")
    return temperature
