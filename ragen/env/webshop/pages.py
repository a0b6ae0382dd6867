"""The pages of the shop, and their clickable texts.

A page is a sequence of pieces, which the observation separates by ``[SEP]``; the wording is the reference's. Clickable
texts are a dict from the text in lower case to its target, in the order of the available actions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from ragen.env.webshop.records import Record

PER_PAGE = 10  # products on a page of results

_SEARCH_ACTION = "search[<content>]"
_HTML_UNSAFE = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&'"})


_DONE = (
    "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
    "Purchased [SEP] asin [SEP] {asin} [SEP] options [SEP] {chosen} [SEP] attrs [SEP] None [SEP] category [SEP] None "
    "[SEP] query [SEP] None [SEP] product category [SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] "
    "price upper [SEP] instuction text [SEP] category [SEP] product category [SEP] query [SEP] Goal [SEP] None [SEP] "
    "Reward [SEP] Your score (min 0.0, max 1.0) [SEP] {score} [SEP] Reward Details [SEP] None"
)


class Target(NamedTuple):
    """The effect of a click, handled by :class:`~ragen.env.webshop.env.WebShopEnv`: what it does, and to what."""

    does: str
    what: int | str = ""


class Page(NamedTuple):
    """A page of the shop.

    Attributes:
        text: The observation.
        targets: The clickable texts.
        has_search: Whether it has a search box.
        is_end: Whether it is a dead end, with links back only.
    """

    text: str
    targets: dict[str, Target]
    has_search: bool = False
    is_end: bool = False

    def available(self) -> list[str]:
        """The actions of the page, as listed in the observation."""
        actions = [f"click[{text}]" for text in self.targets]
        return [_SEARCH_ACTION, *actions] if self.has_search else actions


def search_page(instruction: str) -> Page:
    """The first page."""
    return Page(_joined(["WebShop", "Instruction:", instruction, "Search"]), {}, has_search=True)


def results_page(instruction: str, products: dict[int, Record], number: int, total: int) -> Page:
    """A page of results.

    The page after the last one with products is a dead end. In the reference, an unlisted button leads on to further
    empty pages.

    Args:
        instruction: The goal's text.
        products: The products to show, by their numbers in the catalogue.
        number: The number of the page, from 1.
        total: Number of results on all pages.
    """
    texts = [*_head(instruction), f"Page {number} (Total results: {total})"]
    targets = {"back to search": Target("go_to_search")}
    if number > 1:
        texts.append("< Prev")
        targets["< prev"] = Target("turn_page", number - 1)
    texts.append("Next >")
    is_end = number > 1 and not products
    if not is_end:
        targets["next >"] = Target("turn_page", number + 1)
    for where, product in products.items():
        texts += [product.asin, product.title, product.price_text]
        targets[product.asin.lower()] = Target("open_product", where)
    return Page(_joined(texts), targets, is_end=is_end)


def item_page(instruction: str, product: Record, show_attributes: bool = False) -> Page:
    """The page of a product. As in the reference, it does not show the options chosen."""
    buttons = ["Description", "Features", "Reviews", *(["Attributes"] if show_attributes else [])]
    texts = [*_head(instruction), "< Prev"]
    targets = {"back to search": Target("go_to_search"), "< prev": Target("go_to_results")}
    targets |= {button.lower(): Target("open_part", button.lower()) for button in buttons}
    targets["buy now"] = Target("buy")
    taken = {*targets, "search"}
    for name, values in product.options.items():
        texts += [name, *values]
        targets |= {value: Target("choose", name) for value in values if value not in taken}
    texts += [product.title, f"Price: {product.price_text}", f"Rating: {_rating(product)}", *buttons, "Buy Now"]
    return Page(_joined(texts), targets)


def part_page(instruction: str, product: Record, part: str) -> Page:
    """A page with one part of a product: its ``description``, ``features``, ``reviews`` or ``attributes``."""
    parts = {
        "description": [product.description],
        "features": product.bullets,
        "attributes": product.attributes,
        "reviews": [f"{each['title']} ({each['score']} of 5): {each['body']}" for each in product.reviews],
    }
    texts = [*_head(instruction), "< Prev", *parts[part]]
    targets = {"back to search": Target("go_to_search"), "< prev": Target("go_to_product")}
    return Page(_joined(texts), targets, is_end=True)


def done_page(asin: str, options: dict[str, str], score: float) -> Page:
    """The page after a purchase; it has no actions."""
    chosen = json.dumps(options, sort_keys=True).translate(_HTML_UNSAFE)
    return Page(_DONE.format(asin=asin, chosen=chosen, score=score), {})


def _head(instruction: str) -> list[str]:
    return ["Instruction:", instruction, "Back to Search"]


def _rating(product: Record) -> str:
    scores = [float(review["score"]) for review in product.reviews]
    return f"{sum(scores) / len(scores):.1f}" if scores else "N.A."


def _joined(texts: Iterable[str]) -> str:
    """The pieces like the text nodes of an HTML page: without empty ones and line breaks between tags."""
    return " [SEP] ".join(text.strip() for text in texts if text.strip() or (text and "\n" not in text))
