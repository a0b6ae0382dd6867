"""The numbering of Blue's hosts, actions and observations in CAGE Challenge 2: 13 hosts, 145 actions, 52 bits.

========== ============================================================================================
action     what
========== ============================================================================================
0, 1       sleep; monitor
2 to 14    analyse a host, in the order of :data:`HOSTS`
15 to 27   remove Red's noticed processes from a host
28 to 131  eight blocks of decoys, in the order of :data:`DECOYS`
132 to 144 restore a host
========== ============================================================================================

An observation has four bits per host: two for this step's activity (none 00, scan 10, exploit 11), two for its presumed
compromise (no 00, unknown 10, user 01, privileged 11). The numbering is that of the challenge's wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence

HOSTS = (
    "Defender",
    "Enterprise0",
    "Enterprise1",
    "Enterprise2",
    "Op_Host0",
    "Op_Host1",
    "Op_Host2",
    "Op_Server0",
    "User0",
    "User1",
    "User2",
    "User3",
    "User4",
)
N_HOSTS = len(HOSTS)
INDEX = {name: index for index, name in enumerate(HOSTS)}

DECOYS = ("Apache", "Femitter", "HarakaSMPT", "Smss", "SSHD", "Svchost", "Tomcat", "Vsftpd")

ANALYSE = 2  # after sleep and monitor
REMOVE = ANALYSE + N_HOSTS
DECOY = REMOVE + N_HOSTS
RESTORE = DECOY + len(DECOYS) * N_HOSTS
N_ACTIONS = RESTORE + N_HOSTS

N_BITS = 4 * N_HOSTS
ACTIVITY = {"none": (0, 0), "scan": (1, 0), "exploit": (1, 1)}
COMPROMISED = {"no": (0, 0), "unknown": (1, 0), "user": (0, 1), "privileged": (1, 1)}

ACCESS_LEVELS = ("None", "User", "Privileged")  # Red's access to a host
PRIVILEGED = 2

WORKFLOW_TYPES = ("defender", "enterprise", "op_server", "op_host", "user")
"""The types of hosts that a workflow orders."""

_TYPE_OF = (0, 1, 1, 1, 3, 3, 3, 2, 4, 4, 4, 4, 4)

FOOTHOLD = INDEX["User0"]  # the host of Red's first session, which nothing ends


FIXES = {block + host: kind for block in (REMOVE, RESTORE) for host, kind in enumerate(_TYPE_OF)}
"""The type of host, an index into :data:`WORKFLOW_TYPES`, of each action that is a fix: Remove or Restore."""


def compromised_types(levels: Sequence[int]) -> tuple[bool, ...]:
    """Whether Red has a session on a host of each type; the foothold does not count.

    Args:
        levels: Red's access to each host, as indices into :data:`ACCESS_LEVELS`.

    Returns:
        Five booleans, in the order of :data:`WORKFLOW_TYPES`.
    """
    held = {_TYPE_OF[host] for host, level in enumerate(levels) if level and host != FOOTHOLD}
    return tuple(kind in held for kind in range(5))
