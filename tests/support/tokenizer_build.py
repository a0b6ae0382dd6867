"""Builds the small tokenizer that ships with the package: ``python tests/support/tokenizer_build.py FOLDER``.

A byte-level BPE of 512 entries, trained on ``data/tokenizer_corpus.txt``. Any text survives encoding and decoding,
every cell of a grid and every digit is a token of its own, and ``<think>``, ``</think>``, ``<answer>`` and
``</answer>`` are one token each. The chat template is plain ChatML: no default system prompt, no trimming.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = Path(__file__).parents[1] / "data" / "tokenizer_corpus.txt"
VOCABULARY_SIZE = 512
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
REPLY_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
# A word may begin with a space and a capital, and "||" is one; all else stands alone: no merge joins two grid cells.
PIECES = r" ?[A-Za-z]?[a-z]+| ?\|\||[\s\S]"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 32768,
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
    "eos_token": TURN_END,
    "pad_token": END_OF_TEXT,
    "chat_template": CHAT_TEMPLATE,
}


def train(texts: list[str], vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Train the tokenizer.

    Args:
        texts: Lines to learn merges from.
        vocabulary_size: Entries in all: 256 bytes, the control tokens, the reply tags, and merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, *REPLY_TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The tags are the model's own words: not special, so that decoding without special tokens keeps them.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in REPLY_TAGS])
    return tokenizer


def corpus() -> list[str]:
    """The lines of the training text, without the reply tags, which need no merges."""
    text = CORPUS.read_text(encoding="utf-8")
    for tag in REPLY_TAGS:
        text = text.replace(tag, "\n")
    return text.splitlines()


def build(folder: Path) -> None:
    """Train on the corpus and write ``tokenizer.json`` and ``tokenizer_config.json`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    train(corpus()).save(str(folder / "tokenizer.json"))
    config = json.dumps(TOKENIZER_CONFIG, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
