"""From what the model wrote to actions, and to the reply as the history keeps it.

A reply is ``<think>..</think><answer>a || b</answer>``, or ``<answer>..</answer>`` alone without ``enable_think``. The
first tag stands at the end of the prompt already, so it is put back before a reply that lacks it. Any string is a
legal reply, and reading it takes time linear in its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ragen.llm_agent.prompting.control_tokens import ALWAYS, ControlTokens

THINK, END_THINK, ANSWER, END_ANSWER = REPLY_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_TURN_TO_ANSWER = re.compile(rf"{END_THINK}\s*{ANSWER}")


@dataclass(frozen=True)
class ParsedReply:
    """A reply and what it asks for.

    Attributes:
        raw: As the model wrote it, with the tag that the prompt had written for it.
        text: As the history keeps it: rebuilt from its parts, or, if malformed, without control tokens.
        actions: The actions in order, at most ``max_actions``; empty if the reply is malformed.
        tag_added: Whether the first tag was the prompt's, and not the model's.
    """

    raw: str
    text: str
    actions: list[str]
    tag_added: bool = False


class ReplyParser:
    """Reads replies under one set of rules."""

    def __init__(
        self,
        control: ControlTokens,
        enable_think: bool = True,
        action_sep: str = "||",
        max_actions: int | None = None,
        as_ragen: bool = False,
    ) -> None:
        """Set the rules.

        Args:
            control: What to remove from the model's text.
            enable_think: Whether a reply must think before it answers.
            action_sep: What stands between two actions.
            max_actions: Further actions are dropped; None keeps all.
            as_ragen: Whether to put the first tag also before a reply that has it, to leave a malformed reply as it is,
                and to remove the tags and ChatML's tokens one after the other, once each, as RAGEN does.
        """
        self.opening_tag = THINK if enable_think else ANSWER
        self._control = control
        self._inner = control.plus(*REPLY_TAGS)
        self._enable_think = enable_think
        self._action_sep = action_sep
        self._max_actions = max_actions
        self._as_ragen = as_ragen

    def parse(self, reply: str) -> ParsedReply:
        """Read one reply; a malformed one gives no actions."""
        tag_added = self._as_ragen or not reply.lstrip().startswith(self.opening_tag)
        raw = self.opening_tag + reply if tag_added else reply
        parts = self._parts(raw)
        if parts is None:
            text = raw if self._as_ragen else self._control.remove(raw).strip()
            return ParsedReply(raw, text, [], tag_added)
        thought, answer = map(self._cleaned, parts)
        actions = [action for part in answer.split(self._action_sep) if (action := part.strip())]
        if self._max_actions is not None and len(actions) > self._max_actions:
            actions = actions[: self._max_actions]
            answer = f" {self._action_sep} ".join(actions)
        text = f"{ANSWER}{answer}{END_ANSWER}"
        text = f"{THINK}{thought}{END_THINK}{text}" if self._enable_think else text
        return ParsedReply(raw, text, actions, tag_added)

    def _cleaned(self, part: str) -> str:
        """A part of the reply without tokens that mean something."""
        if not self._as_ragen:
            return self._inner.remove(part).strip()
        for token in (*REPLY_TAGS, *ALWAYS):
            part = part.replace(token, "").strip()
        return part

    def _parts(self, raw: str) -> tuple[str, str] | None:
        """The thought and the answer, or None if the reply is malformed."""
        start = raw.find(self.opening_tag)
        if start < 0:
            return None
        start = think_end = answer_start = start + len(self.opening_tag)
        if self._enable_think:
            turn = _TURN_TO_ANSWER.search(raw, start)
            if turn is None:
                return None
            think_end, answer_start = turn.span()
        answer_end = raw.find(END_ANSWER, answer_start)
        return None if answer_end < 0 else (raw[start:think_end], raw[answer_start:answer_end])
