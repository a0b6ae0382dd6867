"""The bandit: one pull, with the names as the only hint.

Every random draw of an episode comes from one stream of uniform numbers in [0, 1), numpy's ``default_rng(seed)``. All
members of a group share the seed and therefore also what the risky arm pays, as in RAGEN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ragen.env.bandit.config import NAME_PAIRS, BanditEnvConfig
from ragen.env.base import BaseDiscreteActionEnv, StepResult, snapshots
from ragen.env.game import TextGame

_PROMPT = (
    "You are playing a bandit game. Goal: Maximize your total reward by choosing which arm to pull. \n"
    "Game Rules: \n"
    "1. There are 2 arms, named {0} and {1}\n"
    "2. Each arm has its own reward distribution, related to their names. \n"
    "3. Analyze the symbolic meaning of each arm's name to guess how their reward distribution might behave.\n"
    "4. Based on the symbolic meaning of their names, which arm do you think is more likely to give higher rewards"
    " on average? Choose between {0} and {1}, and output like <answer> {0} </answer> or <answer> {1} </answer>.\n"
)


class BanditEnv(TextGame, BaseDiscreteActionEnv):
    """Choose between a safe arm and one that pays more on average."""

    config_class = BanditEnvConfig
    seed_limit = None
    cost_hint = "cheap"

    def __init__(self, config: BanditEnvConfig | None = None) -> None:
        """Take a configuration; nothing is drawn before ``reset``."""
        super().__init__(replace(config or BanditEnvConfig()))  # its own: reset writes action_lookup

    def _begin(self, seed: int, mode: str | None) -> None:
        """Draw the names (with ``split``) and the order of the arms."""
        split = self.config.split
        rng = self._rng = np.random.default_rng(seed + self.config.internal_seed if split else seed)
        safe, risky = self.config.lo_arm_name, self.config.hi_arm_name
        if split:
            pairs = NAME_PAIRS[split]
            safe, risky = pairs[int(rng.random() * len(pairs))]
        first = self.config.action_space_start
        safe_first = rng.random() < 0.5
        self._risky = first + 1 if safe_first else first
        arms = (safe, risky) if safe_first else (risky, safe)
        self._arms = {first: arms[0], first + 1: arms[1]}
        self._name_arms()
        self.observation = _PROMPT.format(*arms)

    def _play(self, action: int) -> StepResult:
        """Pull an arm; the episode is over after it.

        Args:
            action: A key of ``config.action_lookup``.

        Returns:
            The payout as text and as reward, True, and info, whose ``success`` is whether the risky arm was pulled,
            whatever it paid.
        """
        risky = action == self._risky
        reward = self.config.lo_arm_score
        if risky:
            lucky = self._rng.random() < self.config.hi_arm_hiscore_prob
            reward = self.config.hi_arm_hiscore if lucky else self.config.hi_arm_loscore
        self.observation = f"{self._arms[action]}: {reward} points"
        return self.observation, reward, True, {"action_is_effective": True, "action_is_valid": True, "success": risky}

    def _name_arms(self) -> None:
        self.config.action_lookup = self._arms

    save, load = snapshots("seed", "_rng", "_risky", "_arms", "observation", after=_name_arms)
