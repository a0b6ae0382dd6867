"""The WebShop environment: search, open, choose, buy.

An action is ``search[words]`` or ``click[text]``; any other text does nothing. Pages depend only on the catalogue, the
goal and the actions.
"""

from __future__ import annotations

from random import Random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.game import PickledBySnapshot, TextGame
from ragen.env.webshop import pages
from ragen.env.webshop.catalogue import Catalogue, open_catalogue
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.records import Record
from ragen.env.webshop.reward import score_purchase

_LONGEST_ARGUMENT = 8192  # characters; no target is longer, and fewer characters of a search are used

_HINTS = """\
We must buy a product within 10 actions. It doesn't have to match perfectly with description.
Search term should not include details like size, color.
Never search for more than 2 times.
Do not be too strict about the description, it's more important to buy one that is close enough within action limit.
Prioritize click a product in the current page over going to next page.
Almost never click[next >] for more than 2 times.
Almost never click[< prev] unless you are sure the product is on one of the previous pages.
If you have less than 3 actions left, just buy the first product you see in the current page.
If an matching option exists, make sure to click[size] then click[color], one at a time, before click[buy now], but \
don't have to if only 1 action left, in that case you just click[buy now]. Never click description."""
_HINT_TEXT = {"up25": _HINTS.replace("2 times.\nAlmost", "2 times.Almost"), "up26": _HINTS}  # 2025 lacks a line break


class WebShopEnv(PickledBySnapshot, TextGame, BaseLanguageBasedEnv):
    """A shop, with the goal to find the product that the instruction describes, and to buy it."""

    config_class = WebShopEnvConfig
    seed_limit = None
    action_hint = "search[words] or click[text of a button, link or option]"

    _catalogue: Catalogue | None = None  # opened on first use, never pickled

    goal: Any = None  # a Goal once reset
    goal_index = -1

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue, shared with all environments of this process that have the same configuration.

        Raises:
            ConfigError: A data file has an invalid format.
            CacheError: The built catalogue cannot be written.
        """
        if self._catalogue is None:
            self._catalogue = open_catalogue(self.config.source, self.config.limit_goals)
        return self._catalogue

    def _begin(self, seed: int, mode: str | None) -> None:
        """Select the goal of the seed and mode, and open the search page.

        Args:
            seed: Enumerates the goals of the mode; see :func:`~ragen.env.webshop.goals.split_place`.
            mode: ``"train"``, ``"val"`` or ``"test"``.
        """
        self.goal_index = self.catalogue.goal_index(seed, mode)
        self._find_goal()
        self._results: tuple[int, ...] = ()
        self._page_number = 1
        self._product = -1
        self._options: dict[str, str] = {}
        self._page = pages.search_page(self.goal.instruction)
        self.observation = f"Instruction: {self.goal.instruction.strip()}"

    def _play(self, action: str) -> StepResult:
        """Execute an action; text that is not an action of the page does nothing.

        As in the reference, a search works on every page, even without a search box.

        Args:
            action: Any text.

        Returns:
            The page without hints and actions (see :meth:`render`), the reward, whether something was bought, and
            info: ``action_is_valid``, ``action_is_effective`` (the page changed), ``success`` (a perfect purchase),
            and on a purchase the parts of the score, see :func:`~ragen.env.webshop.reward.score_purchase`.
        """
        before = self._page.text
        verb, argument = parse_action(action)
        valid = self._is_valid(action, verb, argument)
        score, parts = self._act(verb, argument)
        self.observation = self._page.text
        bought, is_up26 = parts is not None, self.config.compat == "up26"
        perfect = bought and score == 1
        info = {
            **(parts or {}),
            **({"reward": float(score == 1), "raw_reward": score} if is_up26 else {"reward": score}),
            "action_is_effective": self._page.text != before,
            "action_is_valid": valid,
            "success": int(perfect),
            "success_purchase": int(bought),
            "success_find": int(perfect),
            "end_of_page": int(self._page.is_end),
        }
        return self.observation, info["reward"], bought, info

    def render(self, mode: str | None = None) -> str:
        """The page, RAGEN's hints, and the available actions.

        Args:
            mode: None or ``"text"``.

        Raises:
            InputError: Another mode was asked for.
        """
        super().render(mode)
        actions = ", ".join(self._page.available())
        hints = _HINT_TEXT[self.config.compat]
        return f"{self.observation}.{hints}\n You must choose from these actions:{actions}."

    def example_action(self, rng: Random) -> str:
        """A search for the instruction, or any action of the page."""
        return f"search[{self.goal.instruction}]" if self._page.has_search else rng.choice(self._page.available())

    def get_available_actions(self) -> list[str]:
        """The actions of the page, such as ``click[buy now]``; ``search[<content>]`` represents any search."""
        return self._page.available()

    def _find_goal(self) -> None:
        self.goal = None if self.goal_index < 0 else self.catalogue.goal(self.goal_index)

    save, load = snapshots(
        *("seed", "goal_index", "observation", "_results", "_page_number", "_product", "_options", "_page"),
        after=_find_goal,
    )

    def _is_valid(self, action: str, verb: str, argument: str) -> bool:
        if self.config.compat == "up26":
            return argument in self._page.targets if verb == "click" else self._page.has_search and verb == "search"
        if self._page.has_search:
            return action.startswith("search[") and action.endswith("]")
        return action.startswith("click[") and action.endswith("]") and action[6:-1] in self._page.targets

    def _act(self, verb: str, argument: str) -> tuple[float, dict[str, Any] | None]:
        """Act; returns the score of a purchase, else 0, and its parts, else None."""
        if verb == "search" and argument:
            self._results = tuple(number for number, _ in self.catalogue.search(argument))
            self._show_results(1)
            return 0.0, None
        target = self._page.targets.get(argument) if verb == "click" else None
        if target is None:
            return 0, None  # an int, as in the reference
        if target.does == "buy":
            return self._buy()
        if target.does == "choose":
            self._options[str(target.what)] = argument
        else:
            self._open(target.does, target.what)
        return 0.0, None

    def _open(self, does: str, what: int | str) -> None:
        instruction = self.goal.instruction
        if does == "go_to_search":
            self._page = pages.search_page(instruction)
        elif does == "turn_page":
            self._show_results(int(what))
        elif does == "go_to_results":
            self._show_results(self._page_number)
        elif does == "open_part":
            self._page = pages.part_page(instruction, self._shown(), str(what))
        else:
            self._product = int(what) if does == "open_product" else self._product
            self._page = pages.item_page(instruction, self._shown(), self.config.show_attrs)

    def _show_results(self, number: int) -> None:
        self._page_number = number
        self._options = {}
        shown = self._results[(number - 1) * pages.PER_PAGE : number * pages.PER_PAGE]
        products = {product: self.catalogue.product(product) for product in shown}
        self._page = pages.results_page(self.goal.instruction, products, number, len(self._results))

    def _buy(self) -> tuple[float, dict[str, Any]]:
        product = self._shown()
        score, parts = score_purchase(product, self._options, self.goal)
        self._page = pages.done_page(product.asin, self._options, score)
        return score, parts

    def _shown(self) -> Record:
        return self.catalogue.product(self._product)


def parse_action(action: str) -> tuple[str, str]:
    """Split ``verb[argument]`` into its parts; two empty texts if the verb is neither ``search`` nor ``click``.

    As in the reference, the argument ends at the last closing bracket of the first line, the rest is ignored, and only
    the argument may have upper-case letters. The time is linear in the length of the text.
    """
    line = action.partition("\n")[0]
    opening = line.rfind("[", 1, max(1, line.rfind("]") - 1))
    verb, argument = line[: max(0, opening)], line[opening + 1 : line.rfind("]")]
    if verb not in ("search", "click"):
        return "", ""
    return verb, argument[:_LONGEST_ARGUMENT].lower()
