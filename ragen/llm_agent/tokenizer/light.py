"""The shipped tokenizer without transformers and tokenizers, which a light install leaves out: it counts tokens.

It writes prompts with the same results as :func:`ragen.llm_agent.tokenizer.load_tokenizer`; a trainer, which needs the
places of replies and decodes tokens, takes that one. Byte-pair encoding (Sennrich et al. 2016) over bytes (Radford et
al. 2019): a text is split into words, and of a word's bytes the pair that was learned first is merged first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

TOKENIZER_DIR = Path(__file__).parent


class LightTokenizer:
    """Reads ``tokenizer.json`` and ``tokenizer_config.json``; names are those of Hugging Face's tokenizers.

    Attributes:
        name_or_path: The folder.
        chat_template: In Jinja.
        eos_token, pad_token: What ends a turn, and what fills up rows.
        eos_token_id, pad_token_id: Their numbers.
        added_tokens_decoder: Number to added token, each with ``content`` and ``special``.
        all_special_tokens: Control tokens by the configuration.
    """

    is_fast: ClassVar[bool] = True

    def __init__(self) -> None:
        """Read both files."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        settings = json.loads((TOKENIZER_DIR / "tokenizer_config.json").read_text("utf-8"))
        file = json.loads((TOKENIZER_DIR / "tokenizer.json").read_text("utf-8"))
        self.name_or_path = str(TOKENIZER_DIR)
        self.chat_template: str = settings["chat_template"]
        self.eos_token, self.pad_token = self.all_special_tokens = settings["eos_token"], settings["pad_token"]
        added = {each["content"]: each for each in file["added_tokens"]}
        self.added_tokens_decoder = {each["id"]: SimpleNamespace(**each) for each in added.values()}
        self.eos_token_id, self.pad_token_id = (added[token]["id"] for token in self.all_special_tokens)
        jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = jinja.from_string(self.chat_template)
        self._added = {token: (each["id"],) for token, each in added.items()}
        self._ids: dict[str, int] = file["model"]["vocab"]
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(file["model"]["merges"])}
        words = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        self._words = re.compile(f"{'|'.join(map(re.escape, added))}|{words}")
        # A visible letter for each byte, as vocabularies of this kind write them: its own, or one from U+0100 on.
        plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
        others = iter(range(0x100, 0x200))
        self._letters = [chr(byte if byte in plain else next(others)) for byte in range(256)]
        self._merged = lru_cache(maxsize=65_536)(self._merge)

    def __len__(self) -> int:
        return len(self._ids.keys() | self._added)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a chat.

        Args:
            conversation: Its messages.
            tokenize: False: the result is a text.
            add_generation_prompt: Whether to open a reply at the end.
            variables: Passed on to the template.
        """
        return self._template.render(
            messages=list(conversation), add_generation_prompt=add_generation_prompt, **variables
        )

    def __call__(self, text: Sequence[str], **options: Any) -> dict[str, list[list[int]]]:
        """The tokens of texts, ``input_ids``; it adds and cuts off nothing, whatever the options.

        Raises:
            ValueError: The places of tokens were asked for.
        """
        if options.get("return_offsets_mapping"):
            raise ValueError("LightTokenizer does not know the places of tokens; use load_tokenizer().")
        return {"input_ids": [[i for word in self._words.findall(each) for i in self._merged(word)] for each in text]}

    def _merge(self, word: str) -> tuple[int, ...]:
        """The tokens of a word."""
        if word in self._added:
            return self._added[word]
        pieces = [self._letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            rank, at = min((self._ranks.get(pair, len(self._ranks)), at) for at, pair in enumerate(pairwise(pieces)))
            if rank == len(self._ranks):
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return tuple(self._ids[piece] for piece in pieces)
