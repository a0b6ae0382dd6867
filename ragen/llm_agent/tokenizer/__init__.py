"""The small ChatML tokenizer that ships with the package; its folder loads with ``AutoTokenizer``, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ragen.extras import needs
from ragen.llm_agent.tokenizer.light import TOKENIZER_DIR, LightTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TOKENIZER_DIR", "LightTokenizer", "load_tokenizer"]


@needs("hf", "a Hugging Face tokenizer")
def load_tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer, ready to use: left padding, ChatML template, ``<|im_end|>`` ends a turn."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(TOKENIZER_DIR))
