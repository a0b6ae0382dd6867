"""The effects of Red's actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ragen.cage2.simulator import tables
from ragen.cage2.simulator.network import Network, Session

SLEEP, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = KINDS = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)


class Move(NamedTuple):
    """An action of Red.

    Attributes:
        kind: One of :data:`KINDS`.
        target: A host; a subnet for a sweep; nothing for sleep.
    """

    kind: str
    target: int = -1


class Outcome(NamedTuple):
    """The outcome of an action, as reported to Red.

    Attributes:
        success: Whether success was reported; None if nothing was.
        found: Whether a scan found anything.
    """

    success: bool | None
    found: bool = False


def play(network: Network, move: Move) -> Outcome:
    """Carry out an action."""
    return _EFFECTS[move.kind](network, move.target)


def _sleep(network: Network, target: int) -> Outcome:
    return Outcome(None)


def _sweep(network: Network, subnet: int) -> Outcome:
    hosts = tables.SUBNETS[subnet]
    if not network.is_reachable(hosts[0]):
        return Outcome(False)
    network.known_addresses.update(hosts)
    network.known_subnets.add(subnet)
    return Outcome(True)


def _scan(network: Network, host: int) -> Outcome:
    if not network.is_reachable(host):
        return Outcome(True)  # a scan of an unreachable host is reported as a success without findings
    events, ports = network.events[host], set()
    for service in network.services[host]:
        events.connect(service.port)
        ports.add(service.port)
    network.scanned[host] = frozenset(ports)
    return Outcome(True, found=True)


def _exploit(network: Network, host: int) -> Outcome:
    ports = network.scanned[host]
    exploit = None if ports is None else _chosen(network, tables.options(ports))
    if exploit is None or not network.is_reachable(host):
        return Outcome(False)
    service = network.find(host, exploit.port, exploit.kind)
    if service is None:  # nothing answers, and no event is visible
        return Outcome(False)
    come_in = _guessed if exploit is tables.SSH else _broken_into
    session = come_in(network, host, service)
    if session is None:
        return Outcome(False)
    network.sessions[host].append(session)
    network.known_hosts.add(host)
    return Outcome(True)


def _chosen(network: Network, options: tuple[tables.Exploit, ...]) -> tables.Exploit | None:
    if len(options) < 2:
        return options[0] if options else None
    if network.rng.random() < tables.PREFERRED:
        return options[0]
    return options[1 + int(network.rng.random() * (len(options) - 1))]


def _guessed(network: Network, host: int, service: tables.Service) -> Session | None:
    events = network.events[host]
    events.connect(service.port, tables.GUESSES)
    if service.is_decoy or not tables.HAS_GUESSABLE_USER[host]:
        return None
    events.connect(service.port)
    return Session(is_privileged=False, is_known=False)


def _broken_into(network: Network, host: int, service: tables.Service) -> Session | None:
    events = network.events[host]
    events.connect(service.port)
    if service.is_decoy:
        events.connect(service.port)
        return None
    network.has_malware[host] = True
    is_noticed = network.rng.random() < tables.DETECTED
    if is_noticed:
        events.connect(0)  # a separate port, unlike all others
        events.has_shell = True
    return Session(service.is_privileged, is_known=is_noticed)


def _escalate(network: Network, host: int) -> Outcome:
    sessions = network.sessions[host]
    if not sessions:
        return Outcome(False)
    if not any(each.is_privileged for each in sessions):
        network.rng.choice(sessions).is_privileged = True
        network.has_malware[host] = True
    if tables.TELLS_SUBNET[host]:
        network.known_subnets.add(tables.SUBNET[host])
    if host in tables.LEADS_TO:
        network.known_addresses.add(tables.LEADS_TO[host])
    if host == tables.OP_SERVER:
        network.is_service_known = True
    return Outcome(True)


def _impact(network: Network, host: int) -> Outcome:
    if not network.sessions[host] or not network.is_service_known:
        return Outcome(False)
    if network.can_be_stopped:
        network.is_service_down = True
    return Outcome(True)


_EFFECTS: dict[str, Callable[[Network, int], Outcome]] = {
    SLEEP: _sleep,
    SWEEP: _sweep,
    SCAN: _scan,
    EXPLOIT: _exploit,
    ESCALATE: _escalate,
    IMPACT: _impact,
}
