"""The embedded CAGE 2 simulator in parts: a network open to Red, draws that are known, and what listens where."""

import random

from ragen.cage2.layout import DECOYS, INDEX
from ragen.cage2.simulator import red
from ragen.cage2.simulator.network import Network, Session

ANALYSE, REMOVE, RESTORE = 2, 15, 132
PORTS = {
    "Defender": {22, 53, 68},
    "Enterprise0": {22},
    "Enterprise1": {22, 135, 3389, 445, 139, 80, 443},
    "Enterprise2": {22, 135, 3389, 445, 139, 80, 443},
    "Op_Host0": {22},
    "Op_Host1": {22},
    "Op_Host2": {22},
    "Op_Server0": {22},
    "User0": {22, 21},
    "User1": {22, 21},
    "User2": {445, 139, 135, 3389},
    "User3": {80, 443, 25, 3389},
    "User4": {22, 80, 443, 25, 3390},
}
LINUX_WITH_ONLY_SSH = ("Defender", "Enterprise0", "Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")


def network(seed=0):
    """A network in which Red can reach everything."""
    made = Network(random.Random(seed))
    made.sessions[INDEX["Enterprise0"]].append(Session(False, False))
    return made


def decoy(name, host):
    return 28 + 13 * DECOYS.index(name) + INDEX[host]


def only(monkeypatch, exploit):
    """Red chooses this exploit, whatever it knows."""
    monkeypatch.setattr(red, "_chosen", lambda *_: exploit)


def bits(blue, host):
    return blue.bits()[4 * INDEX[host] : 4 * INDEX[host] + 4]


class Low(random.Random):
    """Every draw is the lowest."""

    def random(self):
        return 0.0


class High(random.Random):
    """Every draw is the highest."""

    def random(self):
        return 1 - 2**-53
