"""Servers for the tests: one in this process, behind starlette's test client."""

import pytest

pytest.importorskip("starlette.testclient")

from starlette.testclient import TestClient

from ragen.serve.app import create_app
from ragen.serve.sessions import ServeSettings, Sessions

TAGS = {
    "Lake": {"env_type": "frozen_lake", "max_actions_per_traj": 10},
    "Walk": {"env_type": "support.faulty_envs:Walk", "max_actions_per_traj": 7},
    "Box": {"env_type": "sokoban", "max_actions_per_traj": 5, "env_config": {"render_mode": "rgb_array"}},
    "Odd": {"env_type": "support.odd_answers:Odd", "max_actions_per_traj": 7},
}


def configured(lanes=False):
    part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["Lake"], "n_groups": [1]}}
    managed = {"use_multiprocessing": lanes, "max_workers": 2, "crash_report_dir": None, "train": part, "val": part}
    return {"es_manager": managed, "custom_envs": TAGS}


@pytest.fixture
def serve():
    """A function that starts a server and returns its client; ``client.sessions`` is what it serves."""
    clients = []

    def start(auth_token=None, hosts=(), lanes=False, **limits):
        sessions = Sessions(ServeSettings(configured(lanes), tuple(TAGS), **limits))
        client = TestClient(create_app(sessions, auth_token, hosts))
        client.sessions = sessions
        client.__enter__()
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.__exit__(None, None, None)
