"""How a batch becomes a step of GRPO or PPO: the keys that are read, by verl's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.config.not_done import refuse_not_done
from ragen.llm_agent.config.reading import choice, count, number

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
        mini_batch_size: Rows of one step of the optimiser.
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
    """

    estimator: str = "grpo"
    normalise_by_std: bool = True
    gamma: float = 1.0
    lam: float = 1.0
    lr: float = 3e-4
    critic_lr: float = 1e-3
    grad_clip: float = 1.0
    epochs: int = 1
    mini_batch_size: int = 128
    max_tokens: int = 16_384
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    aggregation: str = "token-mean"
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    cliprange_value: float = 0.5
    temperature: float = 1.0

    @classmethod
    def read(cls, config: Any) -> UpdateSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work, or asks for what RAGEN's own trainer alone does.
        """
        refuse_not_done(config, "trainer.backend: tiny")
        clip = number(config, f"{_ACTOR}.clip_ratio", 0.2, 0.0)
        return cls(
            estimator=choice(config, "algorithm.adv_estimator", "grpo", ESTIMATORS),
            normalise_by_std=setting(config, "algorithm.norm_adv_by_std_in_grpo", bool, True),
            gamma=number(config, "algorithm.gamma", 1.0, 0.0, 1.0),
            lam=number(config, "algorithm.lam", 1.0, 0.0, 1.0),
            lr=number(config, f"{_ACTOR}.optim.lr", 3e-4, 0.0),
            critic_lr=number(config, "critic.optim.lr", 1e-3, 0.0),
            grad_clip=number(config, f"{_ACTOR}.grad_clip", 1.0, 0.0),
            epochs=count(config, f"{_ACTOR}.ppo_epochs", 1, low=1),
            mini_batch_size=count(config, f"{_ACTOR}.ppo_mini_batch_size", 128, low=1),
            max_tokens=count(config, f"{_ACTOR}.ppo_max_token_len_per_gpu", 16_384, low=1),
            clip_ratio_low=number(config, f"{_ACTOR}.clip_ratio_low", clip, 0.0),
            clip_ratio_high=number(config, f"{_ACTOR}.clip_ratio_high", clip, 0.0),
            aggregation=choice(config, f"{_ACTOR}.loss_agg_mode", "token-mean", AGGREGATIONS),
            entropy_coeff=number(config, f"{_ACTOR}.entropy_coeff", 0.0),
            use_kl_loss=setting(config, f"{_ACTOR}.use_kl_loss", bool, False),
            kl_loss_coef=number(config, f"{_ACTOR}.kl_loss_coef", 0.001, 0.0),
            kl_loss_type=choice(config, f"{_ACTOR}.kl_loss_type", "low_var_kl", ("kl", "abs", "mse", "low_var_kl")),
            cliprange_value=number(config, "critic.cliprange_value", 0.5, 0.0),
            temperature=_temperature(config),
        )


def _temperature(config: Any) -> float:
    """The rollouts' temperature, if training can compute the probabilities that replies are drawn with."""
    rollout = "actor_rollout_ref.rollout"
    if not setting(config, f"{rollout}.do_sample", bool, True):
        raise ConfigError(f"configuration key '{rollout}.do_sample' is False; training needs replies that are drawn.")
    for name, neutral in (("top_p", 1.0), ("top_k", -1.0)):
        value = setting(config, f"{rollout}.{name}", float, neutral)
        if value != neutral:
            raise ConfigError(
                f"configuration key '{rollout}.{name}' is {value:g}; expected {neutral:g}: training computes the "
                "probabilities of whole distributions, and replies must be drawn from them."
            )
    temperature = number(config, f"{rollout}.temperature", 1.0, 0.0)
    if temperature == 0:
        raise ConfigError(f"configuration key '{rollout}.temperature' is 0; training needs replies that are drawn.")
    return temperature
