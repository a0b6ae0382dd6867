"""MiniWoB++: a small web page and a task, which is done by clicks and keys.

A page's random numbers follow from the seed. Its clock advances by a second per action and otherwise stands still, and
nothing moves on its own, so an episode is the same wherever it is played. A page cannot be saved: a lost episode is
replayed from its first action.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult
from ragen.env.game import PickledByConfig, TextGame
from ragen.env.miniwob.browser import Browser, Page, Seen, hold_browser, require_browser
from ragen.env.miniwob.config import PLAYABLE, MiniWobEnvConfig
from ragen.env.resources import Lease
from ragen.errors import ResourceError, StateError

LONGEST = 300
"""Maximum length of a typed text, in characters."""

_ELEMENT = r"\s*\[\s*(\d{1,4})\s*"
_ACTION = re.compile(
    rf"\s*(?:(click){_ELEMENT}\]|(type){_ELEMENT}\|(.{{0,{LONGEST}}})\]|(select){_ELEMENT}\|(.+)\]"
    rf"|(scroll){_ELEMENT}(?:\|\s*(up|down)\s*)?\])\s*",
    re.S,
)
_HINT = "click[n], type[n|text], select[n|text], scroll[n|down]"


def read_action(action: str) -> tuple[str, int, str] | None:
    """Parse an action into a verb, the number of an element and a text; None if it is malformed.

    Args:
        action: ``click[3]``, ``type[3|text]``, ``select[3|text]``, ``scroll[3|up]`` or ``scroll[3|down]``.
    """
    found = _ACTION.fullmatch(action)
    if found is None:
        return None
    verb, number, *text = filter(None, found.groups())
    return verb, int(number), text[0] if text else "down" if verb == "scroll" else ""


class MiniWobEnv(PickledByConfig, TextGame, BaseLanguageBasedEnv):
    """Does tasks on web pages.

    Attributes:
        task: The task's name; None before the first reset.
        steps: Number of actions taken in this episode.
    """

    config_class = MiniWobEnvConfig
    task: str | None = None
    _page: Page | None = None
    _lease: Lease[Browser] | None = None
    extra = "browser"
    cost_hint = "heavy"
    action_hint = _HINT

    def __init__(self, config: MiniWobEnvConfig | None = None) -> None:
        """Check that a browser is available; it is started by the first reset.

        Raises:
            SandboxError: There is no browser, or bubblewrap is missing.
        """
        super().__init__(config)
        require_browser(self.config.browser_path)

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw a task and open its page.

        Raises:
            SandboxError: The browser does not start.
            ResourceError: The browser failed.
        """
        drawn = f"{'train' if mode in (None, 'train') else 'val'} {seed}"
        self._close_page()
        self.task, self.steps = Random(drawn).choice(self.config.tasks or PLAYABLE), 0
        if self._lease is None:
            self._lease = hold_browser(self.config.browser_path)
        try:
            self._page = self._lease.value.open(self.task, drawn)
        except ResourceError:
            self._discard()
            raise
        self._show()

    def _show(self, note: str = "") -> None:
        seen = self._seen()
        self.observation = f"{note}Task: {seen.task}\n{seen.elements}"

    def _seen(self) -> Seen:
        assert self._page is not None
        return self._page.seen

    def _play(self, action: str) -> StepResult:
        """Carry out an action on the page.

        Args:
            action: Any text; see :func:`read_action` for valid ones.

        Returns:
            The observation; the task's raw reward (0 until the episode is over, possibly negative); whether the episode
            is over; and info with ``success``.

        Raises:
            ResourceError: The browser failed.
        """
        if self._page is None:
            raise StateError("MiniWobEnv: the page was lost with its browser; reset the environment.")
        before, read, done = self._seen(), read_action(action), False
        if read is not None:
            try:
                done = self._page.act(*read)
            except ResourceError:
                self._discard()
                raise
        self.steps += 1
        seen = self._seen()
        note = (
            ""
            if done
            else f"Not an action. Use {_HINT}.\n"
            if read is None
            else "The element does not accept this action.\n"
        )
        over = seen.done or self.steps >= self.config.max_steps
        info = {
            "action_is_valid": done,
            "action_is_effective": seen != before,
            "success": seen.done and seen.reward > 0,
        }
        if seen.done:
            self.observation = "The task is done." if seen.reward > 0 else "The task has failed."
        else:
            self._show(note)
        return self.observation, float(seen.reward) if seen.done else 0.0, over, info

    def rollout_info(self) -> dict[str, Any]:
        """The task's name."""
        return {} if self.task is None else {"task": self.task}

    def _close_page(self) -> None:
        if self._page is not None:
            page, self._page = self._page, None
            try:
                page.close()
            except ResourceError:
                self._discard()

    def _discard(self) -> None:
        self._page = None
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.discard()

    def close(self) -> None:
        """Close the page; the browser is closed with the last environment that uses it."""
        self._close_page()
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def example_action(self, rng: Random) -> str:
        """Any action that an element accepts."""
        seen = self._seen()
        number = rng.randint(1, max(1, seen.count))
        line = next((each for each in seen.elements.splitlines() if each.startswith(f"[{number}] ")), "")
        choices = [f"click[{number}]", f"click[{number}]", f"scroll[{number}|{rng.choice(('up', 'down'))}]"]
        if re.match(r"\[\d+\] (input (text|password)|textarea)", line):
            choices = [f"type[{number}|{rng.choice(('abc', 'Anna', '7', '01/02/2020'))}]"]
        elif options := re.match(r"\[\d+\] select options: (.*) selected: ", line):
            choices = [f"select[{number}|{rng.choice(options[1].split(' | '))}]"]
        return rng.choice(choices)
