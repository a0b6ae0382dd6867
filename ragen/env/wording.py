"""Texts of generated tasks, from which a scripted player can read the parameters back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from string import Template
from typing import Any


class Wording:
    """A text with parameters such as ``$k``, and the values that each may have."""

    def __init__(self, text: str, choices: Mapping[str, Sequence[Any]]) -> None:
        """Take the text and the values of each parameter, which must differ as texts."""
        self._template, self._choices = Template(text), choices
        self._known = {name: {str(value): value for value in values} for name, values in choices.items()}
        parts = re.split(r"\$(\w+)", text)
        pattern, named = re.escape(parts[0]), set[str]()
        for name, rest in zip(parts[1::2], parts[2::2], strict=True):
            one_of = "|".join(map(re.escape, sorted(self._known[name], key=len, reverse=True)))
            pattern += (f"(?P={name})" if name in named else f"(?P<{name}>{one_of})") + re.escape(rest)
            named.add(name)
        self._pattern = re.compile(pattern)

    def draw(self, rng: Random) -> dict[str, Any]:
        """Draw values of the parameters."""
        return {name: rng.choice(values) for name, values in self._choices.items()}

    def fill(self, parameters: Mapping[str, Any]) -> str:
        """The text with these values."""
        return self._template.substitute(parameters)

    def read(self, text: str) -> dict[str, Any] | None:
        """The values in a text that contains this one; None if it does not."""
        found = self._pattern.search(text)
        return None if found is None else {name: self._known[name][value] for name, value in found.groupdict().items()}
