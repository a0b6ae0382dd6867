"""The state of the network: sessions, services, Red's knowledge, and this step's events that Blue may notice."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from ragen.cage2 import layout
from ragen.cage2.layout import ACTIVITY, COMPROMISED, FOOTHOLD, HOSTS, N_HOSTS
from ragen.cage2.simulator import tables
from ragen.cage2.simulator.tables import Service


@dataclass(slots=True)
class Session:
    """A session of Red on a host.

    Attributes:
        is_privileged: Whether it is root or SYSTEM.
        is_known: Whether Blue knows its process, so that a Remove may end it.
        is_foothold: Whether it is Red's first, which a Restore brings back.
    """

    is_privileged: bool
    is_known: bool
    is_foothold: bool = False


@dataclass(slots=True)
class Events:
    """The events on a host in a step.

    Attributes:
        connections: Number of connections made.
        ports: The connected ports.
        has_shell: Whether one of the connections is a reverse shell.
        is_after_decoy: Whether Blue placed a decoy there before.
    """

    connections: int = 0
    ports: set[int] = field(default_factory=set)
    has_shell: bool = False
    is_after_decoy: bool = False

    def connect(self, port: int, times: int = 1) -> None:
        """Count connections to a port."""
        self.connections += times
        self.ports.add(port)


class Network:
    """The hosts, and Red's knowledge of them.

    Attributes:
        rng: The only source of randomness.
        sessions: Red's sessions by host.
        services: Listening services by host, in the order in which an exploit finds them.
        has_malware: Whether an analysis of the host finds Red's files.
        is_service_down: Whether the operational service is down.
        can_be_stopped: Whether an Impact stops it.
        is_service_known: Whether Red knows it.
        scanned: Ports that Red's last scan of a host found; None if it was not scanned.
        known_hosts, known_addresses, known_subnets: Possible targets of Red.
        events: This step's events by host; only hosts with events.
    """

    def __init__(self, rng: random.Random) -> None:
        """The network at the start of an episode."""
        self.rng = rng
        count = len(HOSTS)
        self.services: list[list[Service]] = [list(tables.SERVICES[host]) for host in range(count)]
        self.sessions: list[list[Session]] = [[] for _ in range(count)]
        self.sessions[FOOTHOLD].append(Session(is_privileged=True, is_known=False, is_foothold=True))
        self.has_malware = [False] * count
        self.is_service_down, self.can_be_stopped, self.is_service_known = False, True, False
        self.scanned: list[frozenset[int] | None] = [None] * count
        self.known_hosts, self.known_addresses, self.known_subnets = {FOOTHOLD}, {FOOTHOLD}, {tables.USER}
        self.events: defaultdict[int, Events] = defaultdict(Events)

    def find(self, host: int, port: int, kind: str) -> Service | None:
        """The first service of a kind on a port; None if there is none."""
        return next((each for each in self.services[host] if each[:2] == (port, kind)), None)

    def is_reachable(self, host_or_subnet_of: int) -> bool:
        """Whether Red can act on a host: on operational ones only while it has a session on an enterprise server."""
        if tables.SUBNET[host_or_subnet_of] != tables.OPERATIONAL:
            return True
        return any(self.sessions[host] for host in tables.ENTERPRISES)

    def restore(self, host: int) -> None:
        """Restore a host to its initial state."""
        self.sessions[host] = [each for each in self.sessions[host] if each.is_foothold]
        self.services[host] = list(tables.SERVICES[host])
        self.has_malware[host] = False
        if host == tables.OP_SERVER:
            self.is_service_down = self.can_be_stopped = False

    def held(self) -> list[int]:
        """Hosts on which Red has a session."""
        return [host for host, sessions in enumerate(self.sessions) if sessions]

    def access(self, host: int) -> int:
        """Red's access to a host: 0 none, 1 user, 2 privileged."""
        sessions = self.sessions[host]
        return (2 if any(each.is_privileged for each in sessions) else 1) if sessions else 0


# Blue's actions


_SLEEP, _ANALYSE, _REMOVE, _DECOY, _RESTORE = range(5)
_MANY = 3  # number of connections or ports from which they look like more than a scan of one port


def _taken_apart(action: int) -> tuple[int, int, int]:
    """The verb, decoy and host of an action; -1 for missing parts."""
    block, host = divmod(action - layout.ANALYSE, N_HOSTS)
    if 2 <= block < 2 + len(layout.DECOYS):
        return _DECOY, block - 2, host
    return {-1: _SLEEP, 0: _ANALYSE, 1: _REMOVE}.get(block, _RESTORE), -1, host


_ACTIONS = [_taken_apart(action) for action in range(layout.N_ACTIONS)]


class Blue:
    """Blue's side of an episode: its actions, and its view of each host.

    Attributes:
        thought: The presumed compromise of each host, a key of :data:`ragen.cage2.layout.COMPROMISED`.
        activity: The observed activity on each host in the last step, a key of :data:`ragen.cage2.layout.ACTIVITY`.
    """

    def __init__(self) -> None:
        """Presume that no host is compromised."""
        self.thought = ["no"] * N_HOSTS
        self.activity = ["none"] * N_HOSTS
        self._analysed = -1

    def act(self, network: Network, action: int) -> int:
        """Carry out an action; returns its cost in tenths."""
        verb, decoy, host = _ACTIONS[action]
        self._analysed = -1
        if verb == _RESTORE:
            network.restore(host)
            self.thought[host] = "no"
            return tables.RESTORE_PENALTY
        if verb == _REMOVE:
            sessions = network.sessions[host]
            network.sessions[host] = [each for each in sessions if each.is_privileged or not each.is_known]
            if self.thought[host] != "no":
                self.thought[host] = "unknown"
        elif verb == _ANALYSE and network.has_malware[host]:
            self._analysed = host
        elif verb == _DECOY:
            self._deceive(network, decoy, host)
        return 0

    def _deceive(self, network: Network, number: int, host: int) -> None:
        decoy = tables.DECOYS[number]
        is_taken = any(service.port == decoy.asks for service in network.services[host])
        if is_taken or decoy.windows not in (None, host in tables.WINDOWS):
            return
        network.services[host].append(decoy.service)
        network.events[host].is_after_decoy = True

    def look(self, network: Network) -> None:
        """Monitor: observe this step's events, and clear them."""
        self.activity = ["none"] * N_HOSTS
        for host, events in network.events.items():
            seen = self.activity[host] = interpreted(events)
            if seen == "exploit":
                self.thought[host] = "user"
        if self._analysed >= 0:
            self.thought[self._analysed] = "privileged"
        network.events.clear()

    def bits(self) -> list[int]:
        """The observation: 52 bits, host by host."""
        found: list[int] = []
        for activity, thought in zip(self.activity, self.thought, strict=True):
            found += ACTIVITY[activity] + COMPROMISED[thought]
        return found


def interpreted(events: Events) -> str:
    """The apparent activity on a host, by the original's rules.

    A new decoy is the first entry of the same list: it hides a scan, and turns two connections into three entries.
    """
    entries = events.connections + events.is_after_decoy
    if entries >= _MANY and len(events.ports) >= _MANY:
        return "scan"
    if events.has_shell or (entries >= _MANY and len(events.ports) == 1):
        return "exploit"
    return "none" if events.is_after_decoy else "scan"
