"""Scores a purchase by the type of product, its attributes, the chosen options, and the price.

The rules are the reference's, including their oddities: a goal's options are compared as ``('name', 'value')`` and are
therefore never reduced to one of the colours below, while chosen values are if they contain one (``tangerine`` becomes
``tan``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from ragen.env.webshop.goals import Goal
from ragen.env.webshop.records import Record, title_words

_COLOURS = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel "
    "camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry "
    "cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green "
    "grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot "
    "midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum "
    "purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash "
    "sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow"
)
COLOURS = tuple(_COLOURS.split())

_ALIKE = 85  # per cent; phrases with a higher ratio count as equal
_LATIN_1 = re.compile("[\x80-\xff]")


def score_purchase(product: Record, options: dict[str, str], goal: Goal) -> tuple[float, dict[str, Any]]:
    """Score a purchase.

    Args:
        product: The product bought.
        options: The chosen options, value by name.
        goal: The goal.

    Returns:
        The score, 0 to 1, and its parts under the reference's names in info: ``r_`` is the fraction that is correct,
        ``w_`` its weight; the two for options are omitted if the goal has none.
    """
    attributes = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    chosen = count_options(options.values(), goal.options)
    affordable = product.price <= goal.price_upper
    total = len(goal.attributes) + len(goal.options) + 1
    kind = type_parts(product, goal)
    parts = {
        "r_type": kind.pop("r_type"),
        "r_att": attributes / len(goal.attributes) if goal.attributes else 1.0,
        "w_att": len(goal.attributes) / total,
        **kind,
    }
    if goal.options:
        parts |= {"r_option": chosen / len(goal.options), "w_option": len(goal.options) / total}
    score = (attributes + chosen + affordable) / total * parts["r_type"]
    return score, parts | {"r_price": affordable, "w_price": 1 / total}


def type_parts(product: Record, goal: Goal) -> dict[str, Any]:
    """The match of a product's type with the goal, by query, categories, and words of the title."""
    query_match = product.query == goal.product.query
    shared = _categories(product.product_category) & _categories(goal.product.product_category)
    category_match = len(shared) >= 2
    title_score = 0.2
    if words := title_words(goal.product):
        title_score = len({*title_words(product)} & {*words}) / len(words)
    kind = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        kind = 0.1 if title_score else 0.0
    return {
        "r_type": kind,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
    }


def count_options(chosen: Iterable[str], wanted: Iterable[tuple[str, str]]) -> int:
    """Number of required options that resemble one of the chosen values."""
    values = [_colour_in(value) for value in chosen]
    return sum(any(alike(value, str(option)) for value in values) for option in wanted)


def alike(one: str, other: str) -> bool:
    """Whether two phrases have nearly the same words: thefuzz's ``token_set_ratio`` exceeds 85."""
    return round(token_set_ratio(_processed(one), _processed(other))) > _ALIKE


def _has_attribute(product: Record, attribute: str) -> bool:
    if any(alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _processed(text: str) -> str:
    return default_process(_LATIN_1.sub("", text))


def _colour_in(text: str) -> str:
    return next((colour for colour in COLOURS if colour in text), text)


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}
