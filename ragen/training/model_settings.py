"""How large the model is and how it is warmed up: the keys under ``tiny_model`` and ``warm_up``, checked once.

Apart from :mod:`.tiny_model` and :mod:`.warm_up`, so that a configuration is checked before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.reading import count, number


@dataclass(frozen=True)
class TinyModelSettings:
    """The size of the model; the keys are those under ``tiny_model``, named as in ``Qwen2Config``.

    Attributes:
        hidden_size: Width.
        num_hidden_layers: Layers.
        num_attention_heads: Heads of each layer.
        intermediate_size: Width of the layers' inner part.
        max_position_embeddings: The longest context, in tokens.
        initializer_range: Standard deviation of the first weights. At this size the usual 0.02 hardly learns.
        rope_theta: Base of the rotary position embedding. A small one tells neighbours in a short context apart; with
            the usual 10000 this model does not learn to read a grid.
    """

    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 256
    max_position_embeddings: int = 2048
    initializer_range: float = 0.08
    rope_theta: float = 20.0

    @classmethod
    def read(cls, config: Any) -> TinyModelSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        default = cls()
        sizes = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        ]
        values = {name: count(config, f"tiny_model.{name}", getattr(default, name), low=1) for name in sizes}
        if values["hidden_size"] % (2 * values["num_attention_heads"]):
            raise ConfigError(
                f"configuration key 'tiny_model.hidden_size' is {values['hidden_size']}; expected a multiple of twice "
                f"tiny_model.num_attention_heads={values['num_attention_heads']}."
            )
        spread = number(config, "tiny_model.initializer_range", default.initializer_range, 0.0)
        theta = number(config, "tiny_model.rope_theta", default.rope_theta, 1.0)
        return cls(**values, initializer_range=spread, rope_theta=theta)


@dataclass(frozen=True)
class WarmUpSettings:
    """How the model is warmed up; the keys are those under ``warm_up``.

    Attributes:
        steps: Steps of the optimiser; 0 skips the warm-up.
        groups: Different starts that are demonstrated, split among the tags as the training groups are.
        batch_size: Demonstrations of one step.
        lr: Learning rate; it rises over the first tenth of the steps and falls along a cosine to a twentieth.
        random: Share of thoughtless replies.
        malformed: Share of malformed replies.
        seed: Seed of the first demonstrated start.
    """

    steps: int = 300
    groups: int = 512
    batch_size: int = 32
    lr: float = 3e-3
    random: float = 0.5
    malformed: float = 0.02
    seed: int = 1_000_000

    @classmethod
    def read(cls, config: Any) -> WarmUpSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has a value that cannot work.
        """
        default = cls()
        return cls(
            steps=count(config, "warm_up.steps", default.steps),
            groups=count(config, "warm_up.groups", default.groups, low=1),
            batch_size=count(config, "warm_up.batch_size", default.batch_size, low=1),
            lr=number(config, "warm_up.lr", default.lr, 0.0),
            random=number(config, "warm_up.random", default.random, 0.0, 1.0),
            malformed=number(config, "warm_up.malformed", default.malformed, 0.0, 1.0),
            seed=count(config, "warm_up.seed", default.seed),
        )
