"""Which actions are played where there is no model: examples of valid ones, texts for any environment, and odd ones.

`ragen check`, the scripted policies and `ragen suite` choose among these.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from envlanes.returned import wrong

TEXTS = ("1", "a", "(1 + 2) * 3", "search[red shoes]", "I do not know.", "")
"""For environments that take texts, and of which no example is known."""

ODD = ("", "fly", "Up Down", "<answer>Up</answer>", "search[lamp]", "1 + 1", "\u2191")
"""That no environment expects."""

_NUMBER = re.compile(r"\b\d{1,9}\b")
_ANSWER = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.S)


def answers_in(text: str) -> list[str]:
    """What a text has in ``<answer>`` tags."""
    return _ANSWER.findall(text)


def named_in(instruction: str) -> tuple[str, ...]:
    """The actions of an instruction's examples of an answer, ``<answer>first || second</answer>``."""
    return tuple(filter(None, map(str.strip, "||".join(answers_in(instruction)).split("||"))))


def gives_examples(env_class: Any) -> bool:
    """Whether a class has an ``example_action`` of its own."""
    owner = next((each for each in getattr(env_class, "__mro__", ()) if "example_action" in vars(each)), None)
    return owner is not None and owner.__module__ != "ragen.env.base"


def checked_example(env_class: Any, example: Any) -> str:
    """What an ``example_action`` has returned.

    Raises:
        ReturnError: It is no text.
    """
    if not isinstance(example, str):
        raise wrong(env_class, "example_action", example, "text")
    return example


def _varied(examples: Iterable[str], rng: Random) -> list[str]:
    """Examples with other numbers, of those that have any: a cell or a guess is valid in some states alone."""
    counted = [each for each in examples if _NUMBER.search(each)]
    return [_NUMBER.sub(lambda found: str(rng.randint(1, max(9, int(found[0])))), each) for each in 3 * counted]


class Examples:
    """The actions of a tag that are known to be good, for managers that must all get the same inputs.

    Those that ``example_action`` returns depend on the state. A first manager in the main process, whose rollouts are
    not compared, plays while ``asks`` is true. All others, which are never asked, get what it was told.

    Attributes:
        asks: Whether environments are asked.
        raised: What an environment raised first; "" for nothing.
    """

    def __init__(self, entry: Mapping[str, Any], env_class: Any) -> None:
        """Take the tag's entry of ``custom_envs``, and its class."""
        self.asks = False
        self._class, self._named = env_class, named_in(entry.get("env_instruction") or "")
        self._told: dict[Hashable, str] = {}
        self._is_known = self._is_proved = self._is_played = False
        self.raised = ""

    @property
    def can_ask(self) -> bool:
        """Whether there is an ``example_action`` to ask."""
        return gives_examples(self._class)

    def choices(self, env: Any, names: Sequence[str], when: Hashable, only_good: bool) -> tuple[str, ...]:
        """The actions to choose among; a single one is played once, as the next one depends on what it does.

        Args:
            env: The environment, which is asked if ``asks``.
            names: Its action names; empty if it takes texts.
            when: The episode, the turn and the environment.
            only_good: Whether to leave out texts that are not known to be valid, where others are known.
        """
        if self.asks:
            self._told[when] = checked_example(self._class, env.example_action(Random(str(when))))
        told = self._told.get(when)
        good = (told,) if told else tuple(names) or (*self._named, *_varied(self._named, Random(str(when))))
        self._is_known = self._is_known or bool(good)
        if only_good and good:
            return good
        return tuple(names) or (*good, *TEXTS, *ODD)

    def see(self, history: Iterable[Mapping[str, Any]], is_known: bool = False) -> None:
        """Look for valid actions and errors in a history.

        Args:
            history: Of a rollout cache.
            is_known: Whether valid actions were chosen without this object.
        """
        for turn in history:
            info = turn.get("info") or {}
            self.raised = self.raised or info.get("env_error", "")
            if turn.get("actions"):
                self._is_played = True
                default = "env_error" not in info and (is_known or self._is_known)
                self._is_proved = self._is_proved or bool(info.get("action_is_valid", default))

    @property
    def failure(self) -> str:
        """What the environment raised if not a single action could be executed; else empty."""
        return "" if self._is_played else self.raised

    @property
    def advice(self) -> str:
        """What to do if no turn had an action that is valid, as its info says, or as it was an example; else empty."""
        if self._is_proved:
            return ""
        name = getattr(self._class, "__name__", self._class)
        return f"give {name} an example_action(self, rng), or name some in env_instruction: <answer>ACTION</answer>"
