"""The shipped tokenizer without transformers, which takes a second to import.

It does what prompts and replies need, with the same results as :func:`ragen.llm_agent.tokenizer.load_tokenizer`; a
trainer, which saves tokenizers and pads tensors, takes that one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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
        all_special_tokens: What the configuration names as control tokens.
    """

    is_fast: ClassVar[bool] = True

    def __init__(self, folder: Path = TOKENIZER_DIR) -> None:
        """Read both files.

        Args:
            folder: Where they lie.
        """
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.name_or_path = str(folder)
        self.chat_template: str = settings["chat_template"]
        self.eos_token: str = settings["eos_token"]
        self.pad_token: str = settings["pad_token"]
        self.eos_token_id: int = self._tokenizer.token_to_id(self.eos_token)
        self.pad_token_id: int = self._tokenizer.token_to_id(self.pad_token)
        self.added_tokens_decoder: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self.all_special_tokens = [self.eos_token, self.pad_token]
        self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
            self.chat_template
        )

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

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
        encoded = self._tokenizer.encode_batch(list(text), add_special_tokens=add_special_tokens)
        given: dict[str, list[Any]] = {"input_ids": [each.ids for each in encoded]}
        return given | ({"offset_mapping": [each.offsets for each in encoded]} if return_offsets_mapping else {})

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        """The texts of rows of tokens."""
        rows = [[int(token) for token in row] for row in sequences]
        return self._tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of a row of tokens."""
        return self.batch_decode([token_ids], skip_special_tokens)[0]
