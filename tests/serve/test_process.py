"""The end of the server's process while an environment hangs."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("websockets")
pytest.importorskip("uvicorn")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ragen.serve.app import MAX_FRAME

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PATIENCE = 60  # seconds, well below what uvicorn and the time-out of a step would take
HEAD = b"POST /s/mine/step HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def server():
    """A server of an environment that hangs, and its port."""
    words = ["serve", "--env", "support.odd_answers:Odd", "--port", "0", "--no-journal", "es_manager.step_timeout=600"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen", *words], stdout=subprocess.PIPE, text=True, env=environment
    )
    yield process, int(re.search(r":(\d+)$", process.stdout.readline().strip())[1])
    process.kill()
    process.wait()
    process.stdout.close()


INCOMPLETE = [
    [b""],
    [b"GET /metadata HTTP/1.1\r\nX: "],
    [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", HEAD],
    [HEAD + b"Content-Length: 99\r\n\r\n{"],
    [HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{"],
]


def test_a_request_that_stays_incomplete_ends_its_connection(server):
    with ExitStack() as connections:
        clients = []
        for parts in INCOMPLETE:
            client = socket.create_connection(("127.0.0.1", server[1]), timeout=PATIENCE)
            clients.append(connections.enter_context(client))
            for part in parts:
                client.sendall(part)
        for client in clients:
            while client.recv(1000):
                pass


def test_a_message_that_is_too_long_ends_its_connection(server):
    with connect(f"ws://127.0.0.1:{server[1]}/ws") as client, pytest.raises(ConnectionClosed):
        client.send("x" * (MAX_FRAME + 1))
        client.recv(PATIENCE)


def test_a_stop_does_not_wait_for_an_environment_that_hangs(server, tmp_path):
    process, port = server
    url = f"http://127.0.0.1:{port}/s/mine"
    urllib.request.urlopen(urllib.request.Request(f"{url}/reset", b'{"seed": 1}')).close()
    os.mkfifo(tmp_path / "begun")
    body = json.dumps({"action": {"text": f"hang {tmp_path}/begun"}}).encode()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        (tmp_path / "begun").read_text()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
