"""The actor that has an agent on its node; the only thing here that runs in a process of Ray's."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Sequence
from typing import Any

from ragen.parallel.nodes.agent import Agent
from ragen.parallel.nodes.wire import Contact

_LAST_WORDS = 10.0  # seconds after its agent's end in which the actor is to be ended by whoever placed it


def versions() -> dict[str, str]:
    """What has to be equal on all nodes, for what is pickled on one to be unpickled on another."""
    import numpy

    from ragen.parallel.nodes import PROTOCOL

    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": numpy.__version__,
        "protocol of lanes": PROTOCOL,
    }


def installed() -> dict[str, str]:
    """What a node is asked for beside that, to be told where it differs."""
    import ray

    import ragen

    return {"ragen": ragen.__version__, "ray": ray.__version__}


class NodeAgent:
    """Starts the agent of its node when it is asked to."""

    def open(self, name: str, start_method: str, preload: Sequence[str]) -> dict[str, Any]:
        """Start the agent.

        Args:
            name: The node's, for people.
            start_method: How workers start.
            preload: Modules that workers will need.

        Returns:
            ``contact``, ``versions`` and ``installed``.
        """
        import ray

        address = ray.util.get_node_ip_address()
        agent = Agent(address, name, start_method, preload)
        threading.Thread(target=_leave_after, args=[agent], name="ragen agent leaves", daemon=True).start()
        contact = Contact(address, agent.port, agent.secret)
        return {"contact": contact, "versions": versions(), "installed": installed()}


def _leave_after(agent: Agent) -> None:
    agent.ended.wait()
    threading.Event().wait(_LAST_WORDS)
    os._exit(0)  # its main process is gone without a word
