"""DeepCoder: as :class:`~ragen.env.code.env.CodeEnv`, with RAGEN 2026's rewards, texts and infos.

RAGEN runs programs with the trainer's rights and next to the expected answers. Here they run in the sandbox, and a
function's result is compared as a value, not as a text.
"""

from __future__ import annotations

from ragen.env.base import StepResult
from ragen.env.code import problems
from ragen.env.code.env import CodeEnv
from ragen.env.deepcoder.config import DeepCoderEnvConfig


class DeepCoderEnv(CodeEnv):
    """Asks for a program that passes a problem's tests; every try earns the share of tests it passes."""

    config_class = DeepCoderEnvConfig
    save, load = CodeEnv.save, CodeEnv.load  # it adds nothing to the state

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw a problem of the configured split, whatever the mode."""
        super()._begin(seed, self.config.split)

    def _play(self, action: str) -> StepResult:
        """Try a program; an empty answer is rejected and does not count as a try."""
        if not action.strip():
            self.observation = f"{self._introduced()}\n\nFeedback: Empty action"
            none = {"action_is_effective": False, "action_is_valid": False, "success": False, "error": "Empty action"}
            return self.observation, self.config.invalid_action_score, False, none
        _, _, done, info = super()._play(action)
        share, success = info["passed_tests"] / info["total_tests"], info["success"]
        return self.observation, share, done, {**info, "action_is_effective": success, "pass_reward": share}

    def _report(self, verdict: problems.Verdict, done: bool) -> str:
        """RAGEN's observations: the problem and the failure, or the verdict after the last try."""
        if done:
            return "Correct!" if all(verdict.passed) else "Incorrect."
        detail = f"Passed {sum(verdict.passed)}/{len(verdict.passed)} tests. {verdict.failure}"
        return f"{self._introduced()}\n\nFeedback: {detail}"
