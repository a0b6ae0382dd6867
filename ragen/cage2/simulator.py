"""CAGE Challenge 2's second scenario as tables: the same network, agents, rewards and observations, in microseconds.

First the tables (services, exploits, what Red learns on each host; hosts are indices into
:data:`ragen.cage2.layout.HOSTS`), then the game. It reimplements the original's behavior; episodes have the same
distribution, not the same numbers. The original's bugs are kept:

- after a Restore of Op_Server0, an Impact no longer stops the service (the backup lacks the service's process);
- Remove never ends sessions opened by SSH (their events do not contain the process id);
- a Vsftpd decoy requires port 21 to be free but opens port 80, possibly behind a real web server;
- the database of User3 listens on port 3389, where no exploit looks for one.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ragen.cage2.layout import ACTIVITY, ANALYSE, COMPROMISED, FOOTHOLD, HOSTS, INDEX, N_HOSTS, PRIVILEGED

USER, ENTERPRISE, OPERATIONAL = range(3)  # subnets
SUBNET = tuple({"U": USER, "E": ENTERPRISE, "D": ENTERPRISE, "O": OPERATIONAL}[name[0]] for name in HOSTS)
SUBNETS = tuple(tuple(host for host in range(len(HOSTS)) if SUBNET[host] == subnet) for subnet in range(3))
DEFENDER = INDEX["Defender"]  # has no guessable user (pi on Linux, vagrant on Windows), and tells no subnet
OP_SERVER = INDEX["Op_Server0"]
ENTERPRISE2 = INDEX["Enterprise2"]
ENTERPRISES = tuple(INDEX[f"Enterprise{number}"] for number in range(3))
WINDOWS = frozenset(INDEX[name] for name in ("Enterprise1", "Enterprise2", "User0", "User1", "User2"))


class Service(NamedTuple):
    """A service that listens on a port.

    Attributes:
        port: The port.
        kind: The kind of service that an exploit targets; empty if there is no exploit.
        is_privileged: Whether it, and sessions opened through it, run as root or SYSTEM.
        is_decoy: Whether it is a decoy of Blue.
    """

    port: int
    kind: str
    is_privileged: bool = False
    is_decoy: bool = False


_SSH = Service(22, "ssh")
_WEB = (Service(80, "web"), Service(443, "web"))
_MAIL = Service(25, "mail", True)
_GATEWAY = (_SSH,)
_INTERNAL = (
    _SSH,
    Service(135, ""),
    Service(3389, "rdp", True),
    Service(445, ""),
    Service(139, ""),
    *_WEB,
)
_WINDOWS_1 = (_SSH, Service(21, "ftp", True))
_WINDOWS_2 = (Service(445, "smb", True), Service(139, "smb", True), Service(135, ""), Service(3389, "rdp"))
_LINUX_1 = (_WEB[0], Service(3389, "sql", True), _WEB[1], _MAIL)
_LINUX_2 = (_SSH, _WEB[0], Service(3390, "sql", True), _WEB[1], _MAIL)
_RESOLVER = (_SSH, Service(53, ""), Service(53, ""), Service(68, ""))

SERVICES: tuple[tuple[Service, ...], ...] = (
    _RESOLVER,
    _GATEWAY,
    _INTERNAL,
    _INTERNAL,
    *[_GATEWAY] * 4,
    _WINDOWS_1,
    _WINDOWS_1,
    _WINDOWS_2,
    _LINUX_1,
    _LINUX_2,
)
"""The initial services of each host, in the order in which an exploit finds them."""


EXPLOITS = (
    Service(21, "ftp"),  # FTPDirectoryTraversal, weight 7
    Service(25, "mail"),  # HarakaRCE, 6
    Service(3390, "sql"),  # SQLInjection, 5
    Service(443, "web"),  # HTTPSRFI, 4
    Service(80, "web"),  # HTTPRFI, 3
    Service(139, "smb"),  # EternalBlue, 2
    Service(3389, "rdp"),  # BlueKeep, 1
    Service(22, "ssh"),  # SSHBruteForce, 0.1
)
"""The services that exploits target, by the exploits' names and weights in the original."""
SSH = EXPLOITS[-1]

PREFERRED = 0.75  # probability of the exploit with the greatest weight, if there are others
DETECTED = 0.95  # probability that the connection of a new session is noticed
GUESSES = 10  # failed connections of an SSH brute force


def options(ports: frozenset[int]) -> tuple[Service, ...]:
    """The exploits that Red considers for these open ports, by weight."""
    if not ports & {80, 443}:
        ports = ports - {3390}  # SQL is only tried together with a web server
    return tuple(each for each in EXPLOITS if each.port in ports)


class Decoy(NamedTuple):
    """A decoy that Blue can place on a host.

    Attributes:
        asks: The port that must be free.
        kind: The kind of service that then listens.
        windows: Whether it needs Windows (True) or Linux (False); None for either.
        opens: The port on which it listens.
    """

    asks: int
    kind: str
    windows: bool | None
    opens: int


DECOYS = (
    Decoy(80, "web", None, 80),
    Decoy(21, "ftp", True, 21),
    Decoy(25, "mail", False, 25),
    Decoy(139, "smb", True, 139),
    Decoy(22, "ssh", None, 22),
    Decoy(3389, "rdp", True, 3389),
    Decoy(443, "web", None, 443),
    Decoy(21, "web", False, 80),
)
"""In the order of :data:`ragen.cage2.layout.DECOYS`."""

LEADS_TO: dict[int, int] = {
    INDEX["User1"]: ENTERPRISES[1],
    INDEX["User2"]: ENTERPRISES[1],
    INDEX["User3"]: ENTERPRISES[0],
    INDEX["User4"]: ENTERPRISES[0],
    ENTERPRISE2: OP_SERVER,
}
"""The host whose address Red finds on a host once it is privileged there."""

PENALTY = tuple(
    0 if host == FOOTHOLD else 10 if host in ENTERPRISES or host == OP_SERVER else 1 for host in range(len(HOSTS))
)
"""Blue's penalty per step for a privileged session of Red, in tenths."""

IMPACT_PENALTY = 100  # tenths, for each step in which the service is down
RESTORE_PENALTY = 10  # tenths


# The network


@dataclass(slots=True)
class RedSession:
    """A session of Red on a host.

    Attributes:
        is_privileged: Whether it is root or SYSTEM.
        is_known: Whether Blue knows its process, so that a Remove may end it.
    """

    is_privileged: bool
    is_known: bool


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
        self.services: list[list[Service]] = [list(SERVICES[host]) for host in range(N_HOSTS)]
        self.sessions: list[list[RedSession]] = [[] for _ in range(N_HOSTS)]
        self.sessions[FOOTHOLD].append(RedSession(is_privileged=True, is_known=False))
        self.has_malware = [False] * N_HOSTS
        self.is_service_down, self.can_be_stopped, self.is_service_known = False, True, False
        self.scanned: list[frozenset[int] | None] = [None] * N_HOSTS
        self.known_hosts, self.known_addresses, self.known_subnets = {FOOTHOLD}, {FOOTHOLD}, {USER}
        self.events: defaultdict[int, Events] = defaultdict(Events)

    def is_reachable(self, host_or_subnet_of: int) -> bool:
        """Whether Red can act on a host: on operational ones only while it has a session on an enterprise server."""
        if SUBNET[host_or_subnet_of] != OPERATIONAL:
            return True
        return any(self.sessions[host] for host in ENTERPRISES)

    def restore(self, host: int) -> None:
        """Restore a host to its initial state."""
        self.sessions[host] = self.sessions[host][:1] if host == FOOTHOLD else []  # Red's first session comes back
        self.services[host] = list(SERVICES[host])
        self.has_malware[host] = False
        if host == OP_SERVER:
            self.is_service_down = self.can_be_stopped = False


# Blue's actions


_MANY = 3  # number of connections or ports from which they look like more than a scan of one port
_ANALYSE, _REMOVE, _DECOY, _RESTORE = 0, 1, 2, 2 + len(DECOYS)  # blocks of actions on hosts, after sleep and monitor


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
        block, host = divmod(action - ANALYSE, N_HOSTS)
        self._analysed = -1
        if block == _RESTORE:
            network.restore(host)
            self.thought[host] = "no"
            return RESTORE_PENALTY
        if block == _REMOVE:
            sessions = network.sessions[host]
            network.sessions[host] = [each for each in sessions if each.is_privileged or not each.is_known]
            if self.thought[host] != "no":
                self.thought[host] = "unknown"
        elif block == _ANALYSE and network.has_malware[host]:
            self._analysed = host
        elif block >= _DECOY:
            asks, kind, windows, opens = DECOYS[block - _DECOY]
            is_taken = any(service.port == asks for service in network.services[host])
            if not is_taken and windows in (None, host in WINDOWS):
                network.services[host].append(Service(opens, kind, is_decoy=True))
                network.events[host].is_after_decoy = True
        return 0

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


class RedReport(NamedTuple):
    """The outcome of an action, as reported to Red.

    Attributes:
        success: Whether success was reported; None if nothing was.
        found: Whether a scan found anything.
    """

    success: bool | None
    found: bool = False


Action = Callable[[Network, int], RedReport]
"""Carries out an action of Red at a host, or in a subnet for a sweep."""
Move = tuple[Action, int]


def sleep(network: Network, target: int) -> RedReport:
    """Do nothing."""
    return RedReport(None)


def sweep(network: Network, subnet: int) -> RedReport:
    """Discover the hosts of a subnet."""
    hosts = SUBNETS[subnet]
    if not network.is_reachable(hosts[0]):
        return RedReport(False)
    network.known_addresses.update(hosts)
    network.known_subnets.add(subnet)
    return RedReport(True)


def scan(network: Network, host: int) -> RedReport:
    """Discover the open ports of a host."""
    if not network.is_reachable(host):
        return RedReport(True)  # a scan of an unreachable host is reported as a success without findings
    events, ports = network.events[host], set()
    for service in network.services[host]:
        events.connect(service.port)
        ports.add(service.port)
    network.scanned[host] = frozenset(ports)
    return RedReport(True, found=True)


def exploit(network: Network, host: int) -> RedReport:
    """Open a session on a host through one of the ports of its last scan."""
    ports = network.scanned[host]
    chosen = None if ports is None else _chosen(network, options(ports))
    if chosen is None or not network.is_reachable(host):
        return RedReport(False)
    service = next((each for each in network.services[host] if each[:2] == chosen[:2]), None)
    if service is None:  # nothing answers, and no event is visible
        return RedReport(False)
    come_in = _guessed if chosen is SSH else _broken_into
    session = come_in(network, host, service)
    if session is None:
        return RedReport(False)
    network.sessions[host].append(session)
    network.known_hosts.add(host)
    return RedReport(True)


def _chosen(network: Network, options: tuple[Service, ...]) -> Service | None:
    if len(options) < 2:
        return options[0] if options else None
    if network.rng.random() < PREFERRED:
        return options[0]
    return options[1 + int(network.rng.random() * (len(options) - 1))]


def _guessed(network: Network, host: int, service: Service) -> RedSession | None:
    events = network.events[host]
    events.connect(service.port, GUESSES)
    if service.is_decoy or host == DEFENDER:  # it has no guessable user
        return None
    events.connect(service.port)
    return RedSession(is_privileged=False, is_known=False)


def _broken_into(network: Network, host: int, service: Service) -> RedSession | None:
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
    return RedSession(service.is_privileged, is_known=is_noticed)


def escalate(network: Network, host: int) -> RedReport:
    """Become root or SYSTEM on a host, and learn where to go next."""
    sessions = network.sessions[host]
    if not sessions:
        return RedReport(False)
    if not any(each.is_privileged for each in sessions):
        network.rng.choice(sessions).is_privileged = True
        network.has_malware[host] = True
    if host != DEFENDER:
        network.known_subnets.add(SUBNET[host])
    if host in LEADS_TO:
        network.known_addresses.add(LEADS_TO[host])
    if host == OP_SERVER:
        network.is_service_known = True
    return RedReport(True)


def impact(network: Network, host: int) -> RedReport:
    """Stop the operational service."""
    if not network.sessions[host] or not network.is_service_known:
        return RedReport(False)
    if network.can_be_stopped:
        network.is_service_down = True
    return RedReport(True)


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

    def act(self, network: Network, last: RedReport) -> Move:
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
        self._done: defaultdict[Action, set[int]] = defaultdict(set)
        self._entered: set[int] = set()  # hosts that it once got into
        self._last: Move = (sleep, -1)

    def act(self, network: Network, last: RedReport) -> Move:
        """Impact, else sweep, else scan, else escalate, else exploit."""
        self._learn(last)
        self._last = self._next(network)
        return self._last

    def _next(self, network: Network) -> Move:
        if OP_SERVER in self._done[escalate]:
            return impact, OP_SERVER
        for subnet in (ENTERPRISE, OPERATIONAL, USER):
            if subnet in network.known_subnets - self._done[sweep]:
                self._done[sweep].add(subnet)
                return sweep, subnet
        lost = self._entered - self._done[exploit]
        if new := network.known_addresses - self._done[scan]:
            kind: Action = scan
        elif new := network.known_hosts - self._done[escalate] - lost:
            kind = escalate
        else:
            kind, new = exploit, network.known_addresses - self._done[exploit]
        host = self._rng.choice(sorted(new))
        self._done[kind].add(host)
        return kind, host

    def _learn(self, last: RedReport) -> None:
        kind, host = self._last
        if kind == exploit:
            if last.success:
                self._entered.add(host)
            else:
                self._lose(host)
        elif kind in (escalate, impact) and last.success is False:
            self._done[escalate].discard(host)
            if host in self._entered:
                self._done[exploit].discard(host)

    def _lose(self, host: int) -> None:
        """After a failed exploit: give up its path, and all operational hosts, or else all enterprise ones."""
        self._done[exploit].discard(host)
        for prefix in ("Op", "Ent"):
            if gone := {each for each in self._done[escalate] if HOSTS[each].startswith(prefix)}:
                self._done[escalate] -= gone
                self._done[exploit] -= gone
                return


class Sleeper:
    """Does nothing."""

    def __init__(self, rng: random.Random) -> None:
        """Draw nothing."""

    def act(self, network: Network, last: RedReport) -> Move:
        """Sleep."""
        return sleep, -1


AGENTS: dict[str, Any] = {"b_line": BLine, "meander": Meander, "sleep": Sleeper}


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
        self._outcome = RedReport(None)
        return self.blue.bits()

    def step(self, action: int) -> tuple[list[int], float]:
        """Play a step; returns 52 bits and Blue's reward, at most 0."""
        network = self.network
        cost = self.blue.act(network, action)
        play, target = self._agent.act(network, self._outcome)
        self._outcome = play(network, target)
        cost += IMPACT_PENALTY if network.is_service_down else 0
        cost += sum(PENALTY[host] for host, level in enumerate(self.levels()) if level == PRIVILEGED)
        self.blue.look(network)
        return self.blue.bits(), -cost / 10

    def levels(self) -> list[int]:
        """Red's access to each host, as indices into :data:`ragen.cage2.layout.ACCESS_LEVELS`."""
        return [max((1 + each.is_privileged for each in sessions), default=0) for sessions in self.network.sessions]
