"""A tiny random Qwen2 for the shipped tokenizer: 2 layers, width 64, made here."""

from functools import cache

from ragen.llm_agent.tokenizer import load_tokenizer
from support.later import torch, transformers

CONTEXT = 512


@cache
def tokenizer():
    return load_tokenizer()


def tiny_model(seed=0):
    """Its replies are noise: with ``initializer_range`` 0.08 neither uniform nor stuck on one token."""
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=tokenizer().eos_token_id,
        pad_token_id=tokenizer().pad_token_id,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


def always(model, token):
    """Make a model say one token, whatever it is asked."""
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.lm_head.out_features))
        model.lm_head.bias[token] = 50.0
    return model
