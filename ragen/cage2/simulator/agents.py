"""Red's strategies: straight to the operational server, from host to host, or no action."""

from __future__ import annotations

import random

from ragen.cage2.layout import FOOTHOLD, HOSTS
from ragen.cage2.simulator import red, tables
from ragen.cage2.simulator.network import Network
from ragen.cage2.simulator.red import Move, Outcome


class BLine:
    """A plan of fifteen actions to the operational service; a failed action returns it to an earlier one."""

    _BACK_TO = (0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13)

    def __init__(self, rng: random.Random) -> None:
        """Choose the user host through which it goes, other than its own."""
        user = rng.choice([host for host in tables.SUBNETS[tables.USER] if host != FOOTHOLD])
        way = [user, tables.LEADS_TO[user], tables.ENTERPRISE2, tables.OP_SERVER]
        through = [[Move(red.SCAN, host), Move(red.EXPLOIT, host), Move(red.ESCALATE, host)] for host in way]
        self._plan = [
            Move(red.SWEEP, tables.USER),
            *through[0],
            *through[1],
            Move(red.SWEEP, tables.ENTERPRISE),
            *through[2],
            *through[3],
            Move(red.IMPACT, tables.OP_SERVER),
        ]
        self._at = 0
        self._has_aimed = False  # at the operational server, whose address then stays with it

    def act(self, network: Network, last: Outcome) -> Move:
        """The next action of the plan, or one before it."""
        self._at = min(self._at + 1, len(self._plan) - 1) if last.success else self._BACK_TO[self._at]
        if self._plan[self._at] == Move(red.EXPLOIT, tables.OP_SERVER):
            if not self._has_aimed and not last.found:  # the scan got nowhere: from the second action on
                self._at = 1
            else:
                self._has_aimed = True
        return self._plan[self._at]


class Meander:
    """Attacks all known hosts in random order, until it has the operational server."""

    def __init__(self, rng: random.Random) -> None:
        """Begin without knowledge."""
        self._rng = rng
        self._swept: set[int] = set()
        self._scanned: set[int] = set()
        self._exploited: set[int] = set()
        self._escalated: set[int] = set()
        self._entered: set[int] = set()  # hosts that it once got into
        self._last = Move(red.SLEEP)

    def act(self, network: Network, last: Outcome) -> Move:
        """Impact, else sweep, else scan, else escalate, else exploit."""
        self._learn(last)
        self._last = self._next(network)
        return self._last

    def _next(self, network: Network) -> Move:
        if tables.OP_SERVER in self._escalated:
            return Move(red.IMPACT, tables.OP_SERVER)
        for subnet in (tables.ENTERPRISE, tables.OPERATIONAL, tables.USER):
            if subnet in network.known_subnets - self._swept:
                self._swept.add(subnet)
                return Move(red.SWEEP, subnet)
        if new := network.known_addresses - self._scanned:
            return self._any(red.SCAN, new, self._scanned)
        lost = self._entered - self._exploited
        if new := network.known_hosts - self._escalated - lost:
            return self._any(red.ESCALATE, new, self._escalated)
        return self._any(red.EXPLOIT, network.known_addresses - self._exploited, self._exploited)

    def _any(self, kind: str, hosts: set[int], done: set[int]) -> Move:
        host = self._rng.choice(sorted(hosts))
        done.add(host)
        return Move(kind, host)

    def _learn(self, last: Outcome) -> None:
        kind, host = self._last
        if kind == red.EXPLOIT:
            if last.success:
                self._entered.add(host)
            else:
                self._lose(host)
        elif kind in (red.ESCALATE, red.IMPACT) and last.success is False:
            self._escalated.discard(host)
            if host in self._entered:
                self._exploited.discard(host)

    def _lose(self, host: int) -> None:
        """After a failed exploit: give up its path, and all operational hosts, or else all enterprise ones."""
        self._exploited.discard(host)
        for prefix in ("Op", "Ent"):
            if gone := {each for each in self._escalated if HOSTS[each].startswith(prefix)}:
                self._escalated -= gone
                self._exploited -= gone
                return


class Sleeper:
    """Does nothing."""

    def __init__(self, rng: random.Random) -> None:
        """Draw nothing."""

    def act(self, network: Network, last: Outcome) -> Move:
        """Sleep."""
        return Move(red.SLEEP)


AGENTS: dict[str, type[BLine] | type[Meander] | type[Sleeper]] = {
    "b_line": BLine,
    "meander": Meander,
    "sleep": Sleeper,
}
