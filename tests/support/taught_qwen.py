"""A model of some thousand parameters on the tokenizer that comes with the package, in a folder."""

from __future__ import annotations

from pathlib import Path

from ragen.config.schema import TinyModel
from ragen.llm_agent.tokenizer import load_tokenizer

ANSWERS = ("Up", "Down", "Left", "Right", "Phoenix", "Dragon")
PROMPT = "with nothing before, between or after. Use 100 words (tokens) at most.<|im_end|>\n<|im_start|>assistant\n"
LONGEST = 480  # tokens of nonsense before a prompt's end


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Make a model that answers after any prompt, so that rewards differ, and save it; the folder."""
    import torch

    from ragen.training.tiny_model import build_model

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    tokenizer = load_tokenizer()
    model = build_model(TinyModel(hidden_size=32, intermediate_size=64, num_attention_heads=2), tokenizer, seed).train()
    texts = [f"{PROMPT}<answer>{answer}</answer><|im_end|>" for answer in ANSWERS]
    taught = torch.tensor(tokenizer(texts, add_special_tokens=False, padding=True)["input_ids"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(80):
        nonsense = torch.randint(len(tokenizer), (len(texts), 1 + (step * 97) % LONGEST))
        ids, labels = torch.cat([nonsense, taught], 1), torch.cat([torch.full_like(nonsense, -100), taught], 1)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
