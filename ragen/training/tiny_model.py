"""A randomly initialized Qwen2 small enough to train on a laptop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ragen.extras import needs

if TYPE_CHECKING:
    from ragen.config import TinyModel

with needs("train", "`ragen train`"):
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM


def build_model(settings: TinyModel, tokenizer: Any, seed: int) -> Qwen2ForCausalLM:
    """A model with random weights.

    Args:
        settings: Its size.
        tokenizer: Determines the vocabulary size, and the end and padding tokens.
        seed: Seed of the weights; torch's global generator is unchanged.
    """
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_attention_heads,
        num_key_value_heads=settings.num_attention_heads,
        max_position_embeddings=settings.max_position_embeddings,
        initializer_range=settings.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model.eval()
