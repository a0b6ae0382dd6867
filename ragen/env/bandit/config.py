"""The configuration of the bandit: names and payouts of its arms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ragen.env.checks import Rule, check, integer, number, require

NAME_PAIRS: dict[str, list[tuple[str, str]]] = {
    "train": re.findall(
        r"(\w+) (\w+)",
        "Teacher Trader, Nurse StartupFounder, Librarian Investor, Accountant StockBroker, Engineer RealEstateAgent, "
        "Pharmacist Musician, Clerk Freelancer, Technician Youtuber, Planner Artist, Postman Pilot, "
        "Banker VentureCapitalist, Gardener Cryptominer",
    ),
    "test": re.findall(
        r"(\w+) (\w+)",
        "Receptionist Explorer, Archivist Filmmaker, Bookkeeper Consultant, SocialWorker Photographer, "
        "Mechanic GameDesigner, Secretary Entrepreneur, Cashier DataScientist, CivilServant StartupAccelerator",
    ),
}
"""The (safe, risky) names of each split, in the order that RAGEN's newer generation draws them in."""


@dataclass
class BanditEnvConfig:
    """Configuration of :class:`~ragen.env.bandit.env.BanditEnv`.

    Attributes:
        lo_arm_name: The arm that always pays ``lo_arm_score``; not used with ``split``.
        hi_arm_name: The arm that pays little or much, much more on average; not used with ``split``.
        action_space_start: The number of the first arm; the second has the next one.
        lo_arm_score: Payout of the safe arm.
        hi_arm_loscore: Usual payout of the risky arm.
        hi_arm_hiscore: Rare payout of the risky arm.
        hi_arm_hiscore_prob: Probability of the rare payout, 0 to 1.
        split: None for two fixed names (RAGEN 2025); ``"train"`` or ``"test"`` to draw the pair of names from that
            list (RAGEN 2026).
        internal_seed: Added to every seed with ``split``. RAGEN 2026 adds the number of bandits that its process had
            built before; here it is a plain setting, 0 by default, so that a level depends on configuration and seed
            alone.
        render_mode: ``"text"``.
        action_lookup: Number to name of the arms; ``reset`` sets it, since the order is random.
    """

    lo_arm_name: str = "phoenix"
    hi_arm_name: str = "dragon"
    action_space_start: int = 1
    lo_arm_score: float = 0.1
    hi_arm_loscore: float = 0.0
    hi_arm_hiscore: float = 1.0
    hi_arm_hiscore_prob: float = 0.25
    split: Literal["train", "test"] | None = None
    internal_seed: int = 0
    render_mode: str = "text"
    action_lookup: dict[int, str] | None = None

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        arm = Rule(lambda name: isinstance(name, str) and bool(name.strip()), "the name of an arm, not empty")
        check(
            self,
            lo_arm_name=arm,
            hi_arm_name=arm,
            action_space_start=integer(),
            hi_arm_hiscore_prob=number(0, 1),
            internal_seed=integer(0),
        )
        same = self.lo_arm_name.lower() == self.hi_arm_name.lower()
        require(not same, self, "hi_arm_name", f"a name other than lo_arm_name={self.lo_arm_name!r}")
