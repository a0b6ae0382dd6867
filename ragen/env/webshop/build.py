"""Builds the files of a catalogue from data files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ragen.env.webshop.goals import GoalTable, split_order
from ragen.env.webshop.records import Record, index_text, read_records
from ragen.env.webshop.search import IndexBuilder
from ragen.env.webshop.source import Source
from ragen.env.webshop.store import StoreWriter
from ragen.errors import ConfigError
from ragen.extras import needs

NOUN_MODEL = "en_core_web_sm"


def build_store(source: Source, folder: Path) -> None:
    """Read the data files, and write products, index and goals.

    Args:
        source: The data files and options.
        folder: The empty folder to write to.

    Raises:
        ConfigError: A data file has an invalid format.
    """
    writer, index = StoreWriter(folder), IndexBuilder()
    goals = GoalTable(source.price_seed, human=source.instructions is not None)
    cards: list[bytes] = []

    def packed() -> Iterator[bytes]:
        for record in _tagged(read_records(source), source.nouns):
            index.add(record.asin, index_text(record))
            goals.add(record)
            cards.append(_pack([record.asin, record.title, record.price_text]))
            yield _pack(vars(record))

    writer.add_texts("records", packed())
    writer.add_texts("cards", cards)
    index.write(writer)
    count = goals.write(writer)
    if count == 0:
        raise ConfigError(f"webshop: no product of {source.products} has an instruction in {_where(source)}.")
    writer.add_array("split", split_order(count))
    writer.finish({"products": len(cards), "goals": count, "human": source.instructions is not None})


def _where(source: Source) -> str:
    return f"{source.instructions} (human_attr_path)" if source.instructions else f"{source.attributes} (attr_path)"


def _pack(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _tagged(records: Iterator[Record], nouns: str) -> Iterator[Record]:
    if nouns == "words":
        yield from records
        return
    find = noun_tagger()
    for record in records:
        record.nouns = find(record.title)
        yield record


@needs("webshop", "preparing a WebShop catalogue")
def noun_tagger() -> Callable[[str], list[str]]:
    """A function that finds the nouns of a title with spaCy, lower-cased and in order."""
    import spacy

    model = spacy.load(NOUN_MODEL, disable=["parser", "ner", "lemmatizer"])
    return lambda title: [token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN")]
