"""MetaMathQA: one word problem; each attempt halves the reward.

The right answer is the rest of the reference response after its first "The answer is: ". An attempt is right if it
equals that up to white space and case, as in RAGEN 2025; nothing is printed.
"""

from __future__ import annotations

import math
import random
from typing import Any

from ragen.env.base import BaseLanguageBasedEnv, StepResult, snapshots
from ragen.env.game import TextGame
from ragen.env.metamathqa.config import MetaMathQAEnvConfig
from ragen.env.rows import is_of, load_rows

READ_LIMIT = 10_000
"""Characters of the longest attempt that is compared; a longer one is wrong."""

_MARKER = "The answer is: "


def gold_answer(response: Any) -> str | None:
    """The final answer of a reference response; None if there is none."""
    if not isinstance(response, str):
        return None
    _, marker, answer = response.partition(_MARKER)
    return answer.strip() if marker else None


def _bare(text: str) -> str:
    return "".join(text.split()).lower()


class MetaMathQAEnv(TextGame, BaseLanguageBasedEnv):
    """Answer a word problem.

    Attributes:
        correct_answer: The right answer; None if the data has none.
        index: The problem's index in the data.
        attempts: Number of attempts in this episode.
    """

    config_class = MetaMathQAEnvConfig
    correct_answer: str | None = None
    cost_hint = "cheap"
    action_hint = "the answer alone, such as: 42"

    def __init__(self, config: MetaMathQAEnvConfig | None = None) -> None:
        """Take a configuration and read its problems, unless this process has read them.

        Raises:
            ConfigError: The problems cannot be read, or there are none.
        """
        super().__init__(config)
        self._source = self.config.source()
        if not load_rows(self._source):
            raise self._source.error("there are no rows.")

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw a problem; of the package's problems, training and validation have their own."""
        rng = random.Random(seed)
        problems = load_rows(self._source)  # not kept: a copy must be small when pickled
        self.index = rng.randint(0, len(problems) - 1)
        while self.config.dataset_path is None and not is_of(mode, problems[self.index][0]):
            self.index = rng.randint(0, len(problems) - 1)
        query, response = problems[self.index]
        self.correct_answer = gold_answer(response)
        self.attempts = 0
        self.observation = str(query)

    def _play(self, action: str) -> StepResult:
        """Try an answer.

        Args:
            action: Any text.

        Returns:
            Whether it is right as text, the reward (1, or 1/2 at the second attempt, 1/4 at the third ...; 0.0 if
            wrong), whether it is right, and info.
        """
        right = self._is_right(action)
        reward = math.ldexp(1.0, -self.attempts) if right else 0.0
        self.attempts += 1
        self.observation = "Correct!" if right else "Incorrect. Please think again."
        return self.observation, reward, right, {"action_is_valid": bool(action.strip()), "success": right}

    def _is_right(self, action: str) -> bool:
        if not self.correct_answer or len(action) > max(READ_LIMIT, 2 * len(self.correct_answer)):
            return False
        return _bare(action) == _bare(self.correct_answer)

    def rollout_info(self) -> dict[str, Any]:
        """The right answer, as ``correct_answer``."""
        return {"correct_answer": self.correct_answer}

    save, load = snapshots("seed", "index", "correct_answer", "attempts", "observation")
