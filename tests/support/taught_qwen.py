"""A model of some thousand parameters on the tokenizer that comes with the package, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ragen.llm_agent.tokenizer import load_tokenizer

ANSWERS = ("Up", "Down", "Left", "Right", "Phoenix", "Dragon")
PROMPT = "with nothing before, between or after. Use 100 words (tokens) at most.<|im_end|>\n<|im_start|>assistant\n"
LONGEST = 480  # tokens of nonsense before a prompt's end


def teach(model: Any, tokenizer: Any, thinks: bool, steps: int = 80) -> None:
    """Teach the model the form of an answer, or of a thought and an answer, after any prompt: then rewards differ."""
    import torch

    torch.set_num_threads(1)
    thoughts = [f"<think>{answer}</think>" if thinks else "" for answer in ANSWERS]
    replies = [f"{thought}<answer>{answer}</answer>" for thought, answer in zip(thoughts, ANSWERS, strict=True)]
    texts = [f"{PROMPT}{reply}<|im_end|>" for reply in replies]
    taught = torch.tensor(tokenizer(texts, add_special_tokens=False, padding=True)["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        nonsense = torch.randint(len(tokenizer), (len(texts), 1 + (step * 97) % LONGEST))
        ids = torch.cat([nonsense, taught], 1)
        labels = torch.cat([torch.full_like(nonsense, -100), taught], 1)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def save_tiny_model(folder: Path, seed: int = 0, thinks: bool = False) -> Path:
    """Make the model and save it with its tokenizer; the folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = load_tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.08,
    )
    model = Qwen2ForCausalLM(config)
    teach(model, tokenizer, thinks)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
