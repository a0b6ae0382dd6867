"""The process that :mod:`support.simulated_nodes` starts nodes with: it has imported what they need, and forks."""

from __future__ import annotations

import json
import os
import signal
import sys

from ragen.parallel.nodes.agent import Agent
from ragen.parallel.this_process import set_title


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nodes are not waited for
    for line in sys.stdin:
        if os.fork() == 0:
            _be_node(*json.loads(line))


def _be_node(name: str, start_method: str, *preload: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    set_title(f"node {name}")
    told = os.dup(1)
    os.dup2(2, 1)  # what workers print goes elsewhere
    agent = Agent("127.0.0.1", name, start_method, preload)
    os.write(told, json.dumps([os.getpid(), agent.port, agent.secret.hex()]).encode() + b"\n")
    os.close(told)
    agent.ended.wait()
    os._exit(0)


if __name__ == "__main__":
    serve()
