"""How large the model is and how it is warmed up: the keys under ``tiny_model`` and ``warm_up``, checked once.

Apart from :mod:`.tiny_model` and :mod:`.warm_up`, so that a configuration is checked before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ragen.settings import key, read, refused


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
        rope_theta: Base of the rotary position embedding. A small one tells neighbors in a short context apart; with
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
            ConfigError: A key has a value that cannot work.
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
    """How the model is warmed up; the keys are those under ``warm_up``.

    Attributes:
        steps: Steps of the optimizer; 0 skips the warm-up.
        groups: Different starts that are demonstrated, split among the tags as the training groups are.
        batch_size: Demonstrations of one step.
        lr: Learning rate; it rises over the first tenth of the steps and falls along a cosine to a twentieth.
        random: Share of thoughtless replies.
        malformed: Share of malformed replies.
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
