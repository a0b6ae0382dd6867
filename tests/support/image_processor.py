"""A processor as transformers have them, small enough to be read: an image is four tokens, and its mean colours."""

from __future__ import annotations

from typing import Any

from ragen.llm_agent.tokenizer import load_tokenizer

MARK, TOKENS = "<image>", 4
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% for c in m.content %}"
    "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class StandInProcessor:
    """Takes ``text`` and ``images``; its tokenizer reads the mark of an image as one special token."""

    chat_template = TEMPLATE

    def __init__(self) -> None:
        self.tokenizer = load_tokenizer()
        self.tokenizer.add_special_tokens({"additional_special_tokens": [MARK]})
        self.image_token_id = self.tokenizer.convert_tokens_to_ids(MARK)

    def apply_chat_template(self, conversation: Any, **given: Any) -> Any:
        return self.tokenizer.apply_chat_template(conversation, **{"chat_template": TEMPLATE, **given})

    def __call__(self, text: list[str], images: list[Any], return_tensors: str, **given: Any) -> dict[str, Any]:
        import numpy as np
        import torch

        assert sum(each.count(MARK) for each in text) == len(images), "a mark for each image"
        texts = [each.replace(MARK, MARK * TOKENS) for each in text]
        found = dict(self.tokenizer(texts, return_tensors=return_tensors, **given))
        means = [np.asarray(image, dtype=np.float32).mean((0, 1)) for image in images]
        return {**found, "pixel_values": torch.tensor(np.stack(means))}
