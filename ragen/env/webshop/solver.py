"""A scripted shopper, which searches, opens the product that matches best, chooses options, and buys.

It uses only the text of the observation, like a model, and has no state. Since a page does not show the options chosen
on it, :func:`plan_actions` returns all actions for a page in order; a caller that plays one action at a time passes
:func:`next_action` the actions that it has already taken on the page.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_ACTIONS_MARK = "You must choose from these actions:"
_HINTS_MARK = ".We must buy"
_SEPARATOR = " [SEP] "
_ACTION = re.compile(r"(?:search|click)\[.*?\](?=, (?:search|click)\[|\.?\s*$)", re.DOTALL)
_INSTRUCTION = re.compile(r"Instruction:(?: \[SEP\])? (.*?)(?: \[SEP\] |$)", re.DOTALL)
_PRICE_LIMIT = re.compile(r",? and price lower than (\d+(?:\.\d+)?) dollars")
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_OPTIONS = re.compile(r" with (?=[^:,]{1,40}: )")
_WORD = re.compile(r"\w+")
_FILLER_WORDS = (
    "i am im m looking for find me need please show get want a an the that are is which and they should be it to with "
    "could you has have would like my old new one broke prefer something by of in on or so"
)
_FILLER = frozenset(_FILLER_WORDS.split())


@dataclass(frozen=True)
class View:
    """An observation, parsed.

    Attributes:
        instruction: The instruction.
        pieces: The texts of the page.
        actions: The available actions.
    """

    instruction: str
    pieces: list[str]
    actions: list[str]

    def can_click(self, text: str) -> bool:
        """Whether a text of the page can be clicked."""
        return f"click[{text.lower()}]" in self.actions


def next_action(state_text: str, clicked: Collection[str] = ()) -> str:
    """The next action of the shopper.

    Args:
        state_text: The rendered state, with its list of actions.
        clicked: The actions already taken on this page.

    Returns:
        An action; empty if there is nothing to do.
    """
    return next((action for action in plan_actions(state_text) if action not in clicked), "")


def plan_actions(state_text: str) -> list[str]:
    """The shopper's actions on a page, in order: a search, a click on a product, or options and the purchase."""
    view = read_view(state_text)
    if "search[<content>]" in view.actions:
        return [f"search[{search_words(view.instruction)}]"]
    if view.can_click("Buy Now"):
        return [*(f"click[{value}]" for value in wanted_values(view)), "click[buy now]"]
    if product := best_product(view):
        return [f"click[{product}]"]
    ways_back = ["click[back to search]", "click[< prev]"]
    return [action for action in ways_back if action in view.actions][:1]


def read_view(state_text: str) -> View:
    """Parse a rendered state."""
    shown, _, listed = state_text.rpartition(_ACTIONS_MARK)
    page = shown.partition(_HINTS_MARK)[0]
    found = _INSTRUCTION.search(page)
    return View(found[1] if found else "", page.split(_SEPARATOR), _ACTION.findall(listed))


def search_words(instruction: str) -> str:
    """The search query: the words of the instruction without filler words and the price."""
    text = _PRICE_LIMIT.sub("", instruction).lower()
    return " ".join(word for word in _WORD.findall(text) if word not in _FILLER)


def best_product(view: View) -> str:
    """The first result that may be cheap enough, or else the first result; empty if there are none.

    On the shipped catalogue and on WebShop's 1,000 products, the engine's order beats a comparison of titles.
    """
    limit = _PRICE_LIMIT.search(view.instruction)
    most = float(limit[1]) if limit else float("inf")
    offers = [
        (asin.lower(), _lowest_price(price))
        for asin, price in zip(view.pieces, view.pieces[2:], strict=False)
        if view.can_click(asin) and price.startswith("$")
    ]
    return next((asin for asin, price in offers if price <= most), offers[0][0] if offers else "")


def wanted_values(view: View) -> list[str]:
    """The options of an item page that the instruction names, in the instruction's order."""
    told = _OPTIONS.split(_PRICE_LIMIT.sub("", view.instruction).lower(), maxsplit=1)
    if len(told) == 2:
        pairs = [pair.partition(": ")[2].strip() for pair in told[1].split(", and ")]
        return [value for value in pairs if view.can_click(value)]
    values = [action[6:-1] for action in view.actions]
    return [value for value in values if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", told[0])]


def _lowest_price(text: str) -> float:
    found = _PRICE.match(text)
    return float(found[1]) if found else 0.0
