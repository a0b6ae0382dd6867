"""The network of CAGE Challenge 2's second scenario: services, exploits, decoys, and penalties.

Hosts are indices into :data:`ragen.cage2.layout.HOSTS`.
"""

from __future__ import annotations

from typing import NamedTuple

from ragen.cage2.layout import FOOTHOLD, HOSTS, INDEX

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


class Exploit(NamedTuple):
    """An exploit.

    Attributes:
        name: Its name in the original.
        weight: Red prefers the exploit with the greatest weight.
        port: The target port.
        kind: The kind of service required there.
    """

    name: str
    weight: float
    port: int
    kind: str


FTP, MAIL, SQL, HTTPS, HTTP, SMB, RDP, SSH = EXPLOITS = (
    Exploit("FTPDirectoryTraversal", 7.0, 21, "ftp"),
    Exploit("HarakaRCE", 6.0, 25, "mail"),
    Exploit("SQLInjection", 5.0, 3390, "sql"),
    Exploit("HTTPSRFI", 4.0, 443, "web"),
    Exploit("HTTPRFI", 3.0, 80, "web"),
    Exploit("EternalBlue", 2.0, 139, "smb"),
    Exploit("BlueKeep", 1.0, 3389, "rdp"),
    Exploit("SSHBruteForce", 0.1, 22, "ssh"),
)
"""By weight."""

PREFERRED = 0.75  # probability of the exploit with the greatest weight, if there are others
DETECTED = 0.95  # probability that the connection of a new session is noticed
GUESSES = 10  # failed connections of an SSH brute force


def options(ports: frozenset[int]) -> tuple[Exploit, ...]:
    """The exploits that Red considers for these open ports, by weight."""
    if not ports & {80, 443}:
        ports = ports - {SQL.port}  # only tried together with a web server
    return tuple(each for each in EXPLOITS if each.port in ports)


class Decoy(NamedTuple):
    """A decoy that Blue can place on a host.

    Attributes:
        asks: The port that must be free.
        service: The service that then listens.
        windows: Whether it needs Windows (True) or Linux (False); None for either.
    """

    asks: int
    service: Service
    windows: bool | None = None


def _decoy(asks: int, kind: str, windows: bool | None = None, opens: int | None = None) -> Decoy:
    return Decoy(asks, Service(asks if opens is None else opens, kind, is_decoy=True), windows)


DECOYS = (
    _decoy(80, "web"),
    _decoy(21, "ftp", windows=True),
    _decoy(25, "mail", windows=False),
    _decoy(139, "smb", windows=True),
    _decoy(22, "ssh"),
    _decoy(3389, "rdp", windows=True),
    _decoy(443, "web"),
    _decoy(21, "web", windows=False, opens=80),
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
