"""What Blue's actions do, and the table of hosts that Blue sees."""

from __future__ import annotations

from ragen.cage2 import layout
from ragen.cage2.layout import ACTIVITY, COMPROMISED, N_HOSTS
from ragen.cage2.simulator import tables
from ragen.cage2.simulator.network import Events, Network

_SLEEP, _ANALYSE, _REMOVE, _DECOY, _RESTORE = range(5)
_VSFTPD = layout.DECOYS.index("Vsftpd")
_MANY = 3  # connections, or ports, from which on they look like more than a scan of one port


def taken_apart(action: int) -> tuple[int, int, int]:
    """What an action is: its verb, the decoy, and the host; -1 for what it has none of."""
    if action < layout.ANALYSE:
        return _SLEEP, -1, -1
    block, host = divmod(action - layout.ANALYSE, N_HOSTS)
    if 2 <= block < 2 + len(layout.DECOYS):
        return _DECOY, block - 2, host
    return (_ANALYSE if block == 0 else _REMOVE if block == 1 else _RESTORE), -1, host


_ACTIONS = [taken_apart(action) for action in range(layout.N_ACTIONS)]


class Blue:
    """Blue's side of an episode: what it does to the network, and what it has come to think of each host.

    Attributes:
        thought: How far each host is thought to be compromised, a key of :data:`ragen.cage2.layout.COMPROMISED`.
        activity: What was seen on each host in the last step, a key of :data:`ragen.cage2.layout.ACTIVITY`.
    """

    def __init__(self) -> None:
        """Think well of all hosts."""
        self.thought = ["no"] * N_HOSTS
        self.activity = ["none"] * N_HOSTS
        self._analysed = -1

    def act(self, network: Network, action: int) -> int:
        """Carry out an action; what it costs, in tenths."""
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
        fixed = network.is_fixed and number == _VSFTPD
        decoy = tables.FIXED_VSFTPD if fixed else tables.DECOYS[number]
        is_taken = any(service.port == decoy.asks for service in network.services[host])
        if is_taken or decoy.windows not in (None, host in tables.WINDOWS):
            return
        network.services[host].append(decoy.service)
        network.events_on(host).is_after_decoy = True

    def look(self, network: Network) -> None:
        """Monitor: take note of what happened in this step, which is forgotten then."""
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
    """What the activity on a host looks like, by the original's rules.

    A new decoy is an entry of the same list, at its top: it hides a scan, and makes three entries of two connections.
    """
    entries = events.connections + events.is_after_decoy
    if entries >= _MANY and len(events.ports) >= _MANY:
        return "scan"
    if events.has_shell or (entries >= _MANY and len(events.ports) == 1):
        return "exploit"
    return "none" if events.is_after_decoy else "scan"
