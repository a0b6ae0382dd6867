"""The steps of the game: Blue acts, Red acts, the reward is computed, and Blue observes."""

from __future__ import annotations

import random

from ragen.cage2.layout import ACCESS_LEVELS, HOSTS
from ragen.cage2.simulator import red, tables
from ragen.cage2.simulator.agents import AGENTS
from ragen.cage2.simulator.network import Blue, Network
from ragen.cage2.simulator.red import Outcome


class EmbeddedGame:
    """The embedded simulator; see :mod:`ragen.cage2.simulator`.

    Attributes:
        network: The hosts, with Red's sessions and knowledge.
        blue: Blue's view of the hosts.
    """

    def __init__(self, red_agent: str) -> None:
        """Play against an agent.

        Args:
            red_agent: A key of :data:`ragen.cage2.simulator.agents.AGENTS`.
        """
        self._agent_class = AGENTS[red_agent]
        self.reset(0)

    def reset(self, seed: int) -> list[int]:
        """Begin an episode, determined by the seed and Blue's actions; returns 52 bits."""
        rng = random.Random(seed)
        self.network, self.blue = Network(rng), Blue()
        self._agent = self._agent_class(rng)
        self._outcome = Outcome(None)
        return self.blue.bits()

    def step(self, action: int) -> tuple[list[int], float]:
        """Play a step; returns 52 bits and Blue's reward, at most 0."""
        network = self.network
        cost = self.blue.act(network, action)
        self._outcome = red.play(network, self._agent.act(network, self._outcome))
        cost += self._penalty()
        self.blue.look(network)
        return self.blue.bits(), -cost / 10

    def _penalty(self) -> int:
        network = self.network
        found = tables.IMPACT_PENALTY if network.is_service_down else 0
        for host, sessions in enumerate(network.sessions):
            if sessions and any(session.is_privileged for session in sessions):
                found += tables.PENALTY[host]
        return found

    def held(self) -> list[int]:
        """Hosts on which Red has a session."""
        return self.network.held()

    def access_levels(self) -> dict[str, str]:
        """Red's access to each host: one of :data:`ragen.cage2.layout.ACCESS_LEVELS` by host name."""
        return {name: ACCESS_LEVELS[self.network.access(host)] for host, name in enumerate(HOSTS)}
