"""The game: the network, Blue's side, Red's actions and strategies, and one step of all of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ragen.cage2.layout import ACCESS_LEVELS, ACTIVITY, ANALYSE, COMPROMISED, FOOTHOLD, HOSTS, N_ACTIONS, N_HOSTS
from ragen.cage2.simulator.tables import (
    DECOYS,
    DEFENDER,
    DETECTED,
    ENTERPRISE,
    ENTERPRISE2,
    ENTERPRISES,
    GUESSES,
    IMPACT_PENALTY,
    LEADS_TO,
    OP_SERVER,
    OPERATIONAL,
    PENALTY,
    PREFERRED,
    RESTORE_PENALTY,
    SERVICES,
    SSH,
    SUBNET,
    SUBNETS,
    USER,
    WINDOWS,
    Exploit,
    Service,
    options,
)


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
        self.services: list[list[Service]] = [list(SERVICES[host]) for host in range(count)]
        self.sessions: list[list[Session]] = [[] for _ in range(count)]
        self.sessions[FOOTHOLD].append(Session(is_privileged=True, is_known=False, is_foothold=True))
        self.has_malware = [False] * count
        self.is_service_down, self.can_be_stopped, self.is_service_known = False, True, False
        self.scanned: list[frozenset[int] | None] = [None] * count
        self.known_hosts, self.known_addresses, self.known_subnets = {FOOTHOLD}, {FOOTHOLD}, {USER}
        self.events: defaultdict[int, Events] = defaultdict(Events)

    def find(self, host: int, port: int, kind: str) -> Service | None:
        """The first service of a kind on a port; None if there is none."""
        return next((each for each in self.services[host] if each[:2] == (port, kind)), None)

    def is_reachable(self, host_or_subnet_of: int) -> bool:
        """Whether Red can act on a host: on operational ones only while it has a session on an enterprise server."""
        if SUBNET[host_or_subnet_of] != OPERATIONAL:
            return True
        return any(self.sessions[host] for host in ENTERPRISES)

    def restore(self, host: int) -> None:
        """Restore a host to its initial state."""
        self.sessions[host] = [each for each in self.sessions[host] if each.is_foothold]
        self.services[host] = list(SERVICES[host])
        self.has_malware[host] = False
        if host == OP_SERVER:
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
    block, host = divmod(action - ANALYSE, N_HOSTS)
    if 2 <= block < 2 + len(DECOYS):
        return _DECOY, block - 2, host
    return {-1: _SLEEP, 0: _ANALYSE, 1: _REMOVE}.get(block, _RESTORE), -1, host


_ACTIONS = [_taken_apart(action) for action in range(N_ACTIONS)]


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
            return RESTORE_PENALTY
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
        decoy = DECOYS[number]
        is_taken = any(service.port == decoy.asks for service in network.services[host])
        if is_taken or decoy.windows not in (None, host in WINDOWS):
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


# Red's actions


class Outcome(NamedTuple):
    """The outcome of an action, as reported to Red.

    Attributes:
        success: Whether success was reported; None if nothing was.
        found: Whether a scan found anything.
    """

    success: bool | None
    found: bool = False


Action = Callable[[Network, int], Outcome]
"""Carries out an action of Red at a host, or in a subnet for a sweep."""
Move = tuple[Action, int]


def sleep(network: Network, target: int) -> Outcome:
    """Do nothing."""
    return Outcome(None)


def sweep(network: Network, subnet: int) -> Outcome:
    """Discover the hosts of a subnet."""
    hosts = SUBNETS[subnet]
    if not network.is_reachable(hosts[0]):
        return Outcome(False)
    network.known_addresses.update(hosts)
    network.known_subnets.add(subnet)
    return Outcome(True)


def scan(network: Network, host: int) -> Outcome:
    """Discover the open ports of a host."""
    if not network.is_reachable(host):
        return Outcome(True)  # a scan of an unreachable host is reported as a success without findings
    events, ports = network.events[host], set()
    for service in network.services[host]:
        events.connect(service.port)
        ports.add(service.port)
    network.scanned[host] = frozenset(ports)
    return Outcome(True, found=True)


def exploit(network: Network, host: int) -> Outcome:
    """Open a session on a host through one of the ports of its last scan."""
    ports = network.scanned[host]
    chosen = None if ports is None else _chosen(network, options(ports))
    if chosen is None or not network.is_reachable(host):
        return Outcome(False)
    service = network.find(host, chosen.port, chosen.kind)
    if service is None:  # nothing answers, and no event is visible
        return Outcome(False)
    come_in = _guessed if chosen is SSH else _broken_into
    session = come_in(network, host, service)
    if session is None:
        return Outcome(False)
    network.sessions[host].append(session)
    network.known_hosts.add(host)
    return Outcome(True)


def _chosen(network: Network, options: tuple[Exploit, ...]) -> Exploit | None:
    if len(options) < 2:
        return options[0] if options else None
    if network.rng.random() < PREFERRED:
        return options[0]
    return options[1 + int(network.rng.random() * (len(options) - 1))]


def _guessed(network: Network, host: int, service: Service) -> Session | None:
    events = network.events[host]
    events.connect(service.port, GUESSES)
    if service.is_decoy or host == DEFENDER:  # it has no guessable user
        return None
    events.connect(service.port)
    return Session(is_privileged=False, is_known=False)


def _broken_into(network: Network, host: int, service: Service) -> Session | None:
    events = network.events[host]
    events.connect(service.port)
    if service.is_decoy:
        events.connect(service.port)
        return None
    network.has_malware[host] = True
    is_noticed = network.rng.random() < DETECTED
    if is_noticed:
        events.connect(0)  # a separate port, unlike all others
        events.has_shell = True
    return Session(service.is_privileged, is_known=is_noticed)


def escalate(network: Network, host: int) -> Outcome:
    """Become root or SYSTEM on a host, and learn where to go next."""
    sessions = network.sessions[host]
    if not sessions:
        return Outcome(False)
    if not any(each.is_privileged for each in sessions):
        network.rng.choice(sessions).is_privileged = True
        network.has_malware[host] = True
    if host != DEFENDER:
        network.known_subnets.add(SUBNET[host])
    if host in LEADS_TO:
        network.known_addresses.add(LEADS_TO[host])
    if host == OP_SERVER:
        network.is_service_known = True
    return Outcome(True)


def impact(network: Network, host: int) -> Outcome:
    """Stop the operational service."""
    if not network.sessions[host] or not network.is_service_known:
        return Outcome(False)
    if network.can_be_stopped:
        network.is_service_down = True
    return Outcome(True)


# Red's strategies


class BLine:
    """A plan of fifteen actions to the operational service; a failed action returns it to an earlier one."""

    _BACK_TO = (0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13)

    def __init__(self, rng: random.Random) -> None:
        """Choose the user host through which it goes, other than its own."""
        user = rng.choice([host for host in SUBNETS[USER] if host != FOOTHOLD])
        way = [user, LEADS_TO[user], ENTERPRISE2, OP_SERVER]
        through = [[(scan, host), (exploit, host), (escalate, host)] for host in way]
        self._plan = [
            (sweep, USER),
            *through[0],
            *through[1],
            (sweep, ENTERPRISE),
            *through[2],
            *through[3],
            (impact, OP_SERVER),
        ]
        self._at = 0
        self._has_aimed = False  # at the operational server, whose address then stays with it

    def act(self, network: Network, last: Outcome) -> Move:
        """The next action of the plan, or one before it."""
        self._at = min(self._at + 1, len(self._plan) - 1) if last.success else self._BACK_TO[self._at]
        if self._plan[self._at] == (exploit, OP_SERVER):
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
        self._last: Move = (sleep, -1)

    def act(self, network: Network, last: Outcome) -> Move:
        """Impact, else sweep, else scan, else escalate, else exploit."""
        self._learn(last)
        self._last = self._next(network)
        return self._last

    def _next(self, network: Network) -> Move:
        if OP_SERVER in self._escalated:
            return impact, OP_SERVER
        for subnet in (ENTERPRISE, OPERATIONAL, USER):
            if subnet in network.known_subnets - self._swept:
                self._swept.add(subnet)
                return sweep, subnet
        if new := network.known_addresses - self._scanned:
            return self._any(scan, new, self._scanned)
        lost = self._entered - self._exploited
        if new := network.known_hosts - self._escalated - lost:
            return self._any(escalate, new, self._escalated)
        return self._any(exploit, network.known_addresses - self._exploited, self._exploited)

    def _any(self, kind: Action, hosts: set[int], done: set[int]) -> Move:
        host = self._rng.choice(sorted(hosts))
        done.add(host)
        return kind, host

    def _learn(self, last: Outcome) -> None:
        kind, host = self._last
        if kind == exploit:
            if last.success:
                self._entered.add(host)
            else:
                self._lose(host)
        elif kind in (escalate, impact) and last.success is False:
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
        return sleep, -1


AGENTS: dict[str, type[BLine] | type[Meander] | type[Sleeper]] = {
    "b_line": BLine,
    "meander": Meander,
    "sleep": Sleeper,
}


# The game


class EmbeddedGame:
    """The embedded simulator; see :mod:`ragen.cage2.simulator`.

    Attributes:
        network: The hosts, with Red's sessions and knowledge.
        blue: Blue's view of the hosts.
    """

    def __init__(self, red_agent: str) -> None:
        """Play against an agent.

        Args:
            red_agent: A key of :data:`AGENTS`.
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
        play, target = self._agent.act(network, self._outcome)
        self._outcome = play(network, target)
        cost += self._penalty()
        self.blue.look(network)
        return self.blue.bits(), -cost / 10

    def _penalty(self) -> int:
        network = self.network
        found = IMPACT_PENALTY if network.is_service_down else 0
        for host, sessions in enumerate(network.sessions):
            if sessions and any(session.is_privileged for session in sessions):
                found += PENALTY[host]
        return found

    def held(self) -> list[int]:
        """Hosts on which Red has a session."""
        return self.network.held()

    def access_levels(self) -> dict[str, str]:
        """Red's access to each host: one of :data:`ragen.cage2.layout.ACCESS_LEVELS` by host name."""
        return {name: ACCESS_LEVELS[self.network.access(host)] for host, name in enumerate(HOSTS)}
