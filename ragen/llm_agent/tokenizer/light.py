"""The shipped tokenizer without transformers and tokenizers, which a light install leaves out.

It does what prompts and replies need, with the same results as :func:`ragen.llm_agent.tokenizer.load_tokenizer`; a
trainer, which saves tokenizers and pads tensors, takes that one. Byte-pair encoding (Sennrich et al. 2016) over bytes
(Radford et al. 2019): a text is split into words, and of a word's bytes the pair that was learned first is merged
first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

Place = tuple[int, int]
"""The characters that a token came from: ``[start, end)``."""
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

    def __init__(self, folder: Path = TOKENIZER_DIR) -> None:
        """Read both files.

        Args:
            folder: Folder of the files.
        """
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        file = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        self.name_or_path = str(folder)
        self.chat_template: str = settings["chat_template"]
        self.eos_token: str = settings["eos_token"]
        self.pad_token: str = settings["pad_token"]
        self.added_tokens_decoder: dict[int, Any] = {
            each["id"]: SimpleNamespace(content=each["content"], special=each["special"])
            for each in file["added_tokens"]
        }
        self._pairs = _BytePairs(file, {each["content"]: each["id"] for each in file["added_tokens"]})
        self.eos_token_id: int = self._pairs.ids[self.eos_token]
        self.pad_token_id: int = self._pairs.ids[self.pad_token]
        self.all_special_tokens = [self.eos_token, self.pad_token]
        self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            self.chat_template
        )

    def __len__(self) -> int:
        return len(self._pairs.ids)

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
            tokenize: False; texts are what is given here.
            add_generation_prompt: Whether to open a reply at the end.
            variables: Passed on to the template.

        Raises:
            ValueError: Tokens were asked for.
        """
        if tokenize:
            raise ValueError("LightTokenizer.apply_chat_template gives text; pass tokenize=False, and call it for ids.")
        return self._template.render(
            messages=list(conversation), add_generation_prompt=add_generation_prompt, **variables
        )

    def __call__(
        self,
        text: Sequence[str],
        add_special_tokens: bool = False,
        truncation: bool = False,
        return_offsets_mapping: bool = False,
    ) -> dict[str, list[Any]]:
        """The tokens of texts.

        Args:
            text: The texts.
            add_special_tokens: Whether to add what a model wants around each; this tokenizer adds nothing.
            truncation: False; nothing is cut off.
            return_offsets_mapping: Whether to say which characters each token came from.

        Returns:
            ``input_ids``, and ``offset_mapping`` if it was asked for: a list for each text.

        Raises:
            ValueError: Texts were to be cut off.
        """
        if truncation:
            raise ValueError("LightTokenizer cuts nothing off; pass truncation=False.")
        given: dict[str, list[Any]] = {"input_ids": list(map(self._pairs.numbers, text))}
        return given | (
            {"offset_mapping": [list(self._pairs.places(each)) for each in text]} if return_offsets_mapping else {}
        )

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        """The texts of rows of tokens."""
        skipped = {i for i, each in self.added_tokens_decoder.items() if each.special} if skip_special_tokens else set()
        return [self._pairs.text(token for each in row if (token := int(each)) not in skipped) for row in sequences]

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of a row of tokens."""
        return self.batch_decode([token_ids], skip_special_tokens)[0]


class _BytePairs:
    """Texts to tokens and back, as ``tokenizer.json`` says.

    Attributes:
        ids: The number of each token; bytes are written with the letters of :func:`_letters_of_bytes`.
    """

    def __init__(self, file: Mapping[str, Any], added: Mapping[str, int]) -> None:
        self.ids: dict[str, int] = file["model"]["vocab"] | dict(added)
        self._letters = _letters_of_bytes()
        words = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        self._added = added
        self._parts = re.compile(f"{'|'.join(map(re.escape, added))}|{words}")
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(file["model"]["merges"])}
        byte_of = {letter: byte for byte, letter in enumerate(self._letters)}
        self._bytes = {i: bytes(map(byte_of.__getitem__, token)) for token, i in self.ids.items()}
        self._merged = lru_cache(maxsize=65_536)(self._merge)

    def numbers(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [token for word in self._parts.findall(text) for token in self._merged(word)[0]]

    def places(self, text: str) -> Iterator[Place]:
        """The characters that each token of a text came from."""
        for part in self._parts.finditer(text):
            start, word = part.start(), part.group()
            owners = [place for place, letter in enumerate(word, start) for _ in letter.encode()]
            at = 0
            for length in self._merged(word)[1]:
                yield owners[at], owners[at + length - 1] + 1
                at += length

    def _merge(self, word: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens of a word, and the number of bytes of each."""
        if word in self._added:
            return (self._added[word],), (len(word.encode()),)
        pieces = [self._letters[byte] for byte in word.encode()]
        while len(pieces) > 1:
            rank, at = min((self._ranks.get(pair, len(self._ranks)), at) for at, pair in enumerate(pairwise(pieces)))
            if rank == len(self._ranks):
                break
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return tuple(self.ids[piece] for piece in pieces), tuple(map(len, pieces))

    def text(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become replacement characters."""
        return b"".join(self._bytes.get(token, b"") for token in tokens).decode(errors="replace")


def _letters_of_bytes() -> list[str]:
    """A visible letter for each byte, as vocabularies of this kind write them: its own, or one from U+0100 on."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]
