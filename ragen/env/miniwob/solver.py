"""A scripted player of some tasks, which reads only the observation."""

from __future__ import annotations

import re
from typing import NamedTuple


class Element(NamedTuple):
    """A line of the observation.

    Attributes:
        number: Its number.
        kind: Its tag, with the type of an input.
        text: Its text.
        rest: The rest of the line.
    """

    number: int
    kind: str
    text: str
    rest: str


_LINE = re.compile(r'\[(\d+)\] ((?:input )?[\w-]+)(?: "((?:[^"\\]|\\.)*)")?(.*)')
_QUOTED = re.compile(r'"([^"]*)"')


def elements_of(shown: str) -> list[Element]:
    """The elements that an observation lists."""
    found = (_LINE.fullmatch(line) for line in shown.splitlines())
    return [Element(int(m[1]), m[2], (m[3] or "").replace('\\"', '"'), m[4]) for m in found if m]


def solve(shown: str) -> str | None:
    """The next action; None if the player knows none.

    Args:
        shown: An observation: the task and the numbered elements.
    """
    asked = re.search(r"Task: (.*)", shown)
    if asked is None:
        return None
    return _Reader(asked[1], elements_of(shown)).action()


class _Reader:
    def __init__(self, task: str, elements: list[Element]) -> None:
        self.task, self.elements = task, elements
        self.quoted = _QUOTED.findall(task)

    def first(self, *kinds: str, text: str | None = None) -> Element | None:
        for element in self.elements:
            if (not kinds or element.kind in kinds) and (text is None or element.text.lower() == text.lower()):
                return element
        return None

    def click(self, element: Element | None) -> str | None:
        return None if element is None else f"click[{element.number}]"

    def submit(self) -> str | None:
        for name in ("submit", "ok", "login", "search", "find"):
            if found := self.first("button", text=name):
                return self.click(found)
        return None

    def fill(self, *texts: str) -> str | None:
        """Type texts into the fields in order, then submit."""
        fields = [each for each in self.elements if each.kind in ("input text", "input password", "textarea")]
        for field, text in zip(fields, texts, strict=False):
            if f'value="{text}"' not in field.rest:
                return f"type[{field.number}|{text}]"
        return self.submit()

    def action(self) -> str | None:
        task = self.task.lower()
        for pattern, way in _WAYS:
            if re.search(pattern, task):
                return way(self)
        return None

    def named(self) -> str | None:
        """Click the element whose text is quoted in the task."""
        return self.click(self.first(text=self.quoted[0])) if self.quoted else None

    def sum(self) -> str | None:
        """Solve the arithmetic problem."""
        shown = " ".join(element.text for element in self.elements)
        found = re.search(r"(\d+)\s*([-+x*])\s*(\d+)\s*=", shown)
        if found is None:
            return None
        left, right = int(found[1]), int(found[3])
        return self.fill(str({"+": left + right, "-": left - right}.get(found[2], left * right)))

    def login(self) -> str | None:
        """Type the user name and the password, then submit."""
        return self.fill(*self.quoted[:2]) if len(self.quoted) >= 2 else None

    def boxes(self) -> str | None:
        """Check the named boxes, then submit."""
        wanted = {
            each.strip().lower()
            for each in re.sub(r"^select | and click submit\.?$", "", self.task, flags=re.I).split(",")
        }
        for place, box in enumerate(self.elements):
            if box.kind not in ("input checkbox", "input radio") or "checked" in box.rest:
                continue
            around = [
                self.elements[near].text.lower() for near in (place - 1, place + 1) if 0 <= near < len(self.elements)
            ]
            if wanted & set(around):
                return self.click(box)
        return self.submit()

    def choice(self) -> str | None:
        """Select from a list, then submit."""
        found = re.search(r"select (.*) from the list", self.task, re.I)
        box = self.first("select")
        if found is None or box is None:
            return None
        selected = box.rest.rpartition("selected: ")[2]
        return self.submit() if selected.strip() == found[1] else f"select[{box.number}|{found[1]}]"

    def field(self) -> str | None:
        """Focus the text field."""
        return self.click(self.first("input text"))

    def button(self) -> str | None:
        """Click the first button."""
        return self.click(self.first("button"))

    def once(self) -> str | None:
        """Type the quoted text into the fields, then submit."""
        return self.fill(self.quoted[0], self.quoted[0]) if self.quoted else None

    def closed(self) -> str | None:
        """Close the dialog."""
        return self.click(self.first("button", text="close") or self.first("button"))


_WAYS = (
    (r"username .* password|password .* username", _Reader.login),
    (r"math problem", _Reader.sum),
    (r"^select .* from the list", _Reader.choice),
    (r"^select .* and click submit", _Reader.boxes),
    (r"focus into", _Reader.field),
    (r"close the dialog", _Reader.closed),
    (r"^(enter|type) .*(password|text)", _Reader.once),
    (r"click (on )?the (\")?button(\")?\.?$|^click the button", _Reader.button),
    (r"^click", _Reader.named),
)
