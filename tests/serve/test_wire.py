"""The wire: its messages, its errors, its limits, and who may speak."""

import json

import pytest
from starlette.websockets import WebSocketDisconnect

from ragen.errors import ConfigError
from ragen.serve.app import MAX_FRAME
from ragen.serve.command import main, parser, read_token, settings_of
from ragen.serve.sessions import Sessions
from support.leftovers import until


def error_of(socket, text):
    socket.send_text(text)
    answer = socket.receive_json()
    assert answer["type"] == "error"
    return answer["data"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": 1e999}}', "INVALID_JSON"),
        ('{"type": "step", "data": {"text": "\\ud800"}}', "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ('{"type": "jump"}', "UNKNOWN_TYPE"),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"text": "Up"}}', "EXECUTION_ERROR"),
        ('{"type": "step", "data": {"move": "Up"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": 3}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": "Up"}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"env": "os:system"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"mode": "test"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {}, "request_id": 7}', "VALIDATION_ERROR"),
        ('{"type": "state", "data": 3}', "VALIDATION_ERROR"),
    ],
)
def test_a_message_that_is_none_is_refused_and_the_session_goes_on(serve, text, code):
    with serve().websocket_connect("/ws") as socket:
        assert error_of(socket, text)["code"] == code
        socket.send_json({"type": "reset", "data": {"seed": 1}})
        assert socket.receive_json()["type"] == "observation"


def test_a_full_server_says_so(serve):
    client = serve(max_sessions=1)
    with client.websocket_connect("/ws") as first:
        first.send_json({"type": "reset"})
        first.receive_json()
        with client.websocket_connect("/ws") as second:
            assert second.receive_json()["data"]["code"] == "CAPACITY_REACHED"
        assert client.post("/reset", json={}).status_code == 503


def test_http_answers_what_openenv_asks_for(serve):
    client = serve()
    assert client.get("/health").json() == {"status": "healthy"}
    assert client.get("/list_environments").json() == ["Lake", "Walk", "Box", "Odd"]
    metadata, schema = client.get("/metadata").json(), client.get("/schema").json()
    assert metadata["name"] == "Lake" and metadata["description"]
    assert set(schema) == {"action", "observation", "state", "reset_observation"}
    assert schema["action"]["required"] == ["text"]
    paths = client.get("/openapi.json").json()
    assert paths["info"]["version"] and {"/reset", "/step", "/state"} <= set(paths["paths"])
    assert client.post("/mcp", json={}).json()["jsonrpc"] == "2.0"
    assert client.get("/state").json() == {"episode_id": None, "step_count": 0}
    for path in ("health", "metadata", "schema", "openapi.json", "list_environments"):
        assert client.get(f"/s/mine/{path}").json() == client.get(f"/{path}").json()


def test_http_without_a_session_plays_one_call_on_a_fresh_environment(serve):
    client = serve()
    one, other = (client.post("/reset", json={"seed": 4}).json() for _ in range(2))
    assert one["observation"] == other["observation"] and one["done"] is False
    assert client.post("/step", json={"action": {"text": "Up"}}).json()["metadata"]["turn"] == 1
    assert client.post("/step", json={"text": "Up"}).status_code == 422
    assert client.post("/reset", content=b"{").status_code == 400
    assert client.post("/reset", content=b" " * (MAX_FRAME + 1)).status_code == 422
    assert len(client.sessions) == 0


def test_a_session_is_the_same_over_http_and_websocket(serve):
    client = serve()
    begun = client.post("/s/mine/reset", json={"seed": 4}).json()
    with client.websocket_connect("/s/mine/ws") as socket:
        socket.send_json({"type": "step", "data": {"text": "Up"}})
        assert socket.receive_json()["data"]["metadata"]["turn"] == 1
    again = client.post("/s/mine/step", json={"action": {"text": "Up"}, "request_id": "a"}).json()
    assert again["metadata"]["turn"] == 2
    assert client.post("/s/mine/step", json={"action": {"text": "Up"}, "request_id": "a"}).json() == again
    state = client.get("/s/mine/state").json()
    assert (state["step_count"], state["episode_id"]) == (2, begun["metadata"]["episode_id"])
    assert client.delete("/s/mine").json() == {"status": "closed"} and len(client.sessions) == 0


SECRET = {"auth_token": "secret-token"}
OURS = {"hosts": ("localhost", "testserver")}


@pytest.mark.parametrize(
    ("limits", "headers", "status"),
    [
        *(
            (SECRET, headers, 401)
            for headers in ({}, *({"Authorization": text} for text in ("Bearer wrong", "Bearer ")))
        ),
        (SECRET, {"Authorization": "secret-token"}, 401),
        (SECRET, {"Authorization": "Bearer secret-token"}, 200),
        (OURS, {}, 200),
        (OURS, {"Origin": "http://testserver"}, 200),
        (OURS, {"Origin": "http://evil.example"}, 401),
        (OURS, {"Host": "evil.example:8000"}, 401),
    ],
)
def test_nothing_but_health_is_answered_to_strangers_and_pages_of_other_sites(serve, limits, headers, status):
    client = serve(**limits)
    assert client.get("/health", headers=headers).status_code == 200
    assert client.get("/schema", headers=headers).status_code == status
    assert client.post("/reset", json={}, headers=headers).status_code == status
    try:
        with client.websocket_connect("/ws", headers=headers) as socket:
            socket.send_json({"type": "state"})
            assert socket.receive_json()["type"] == "state" and status == 200
    except WebSocketDisconnect:
        assert status == 401


def test_listening_beyond_this_machine_needs_a_token(tmp_path):
    (tmp_path / "token").write_text(" secret-token\n")
    (tmp_path / "short").write_text("abc\n")
    assert read_token(tmp_path / "token", "::") == "secret-token"
    for host in ("0.0.0.0", "::", "box-1", "10.0.0.1"):
        with pytest.raises(ConfigError):
            read_token(None, host)
        assert main(["--env", "bandit", "--host", host]) == 2
    for name in ("short", "missing"):
        with pytest.raises(ConfigError):
            read_token(tmp_path / name, "127.0.0.1")


def test_a_class_is_served_under_its_own_name():
    settings = settings_of(parser().parse_args(["--env", "support.faulty_envs:Walk", "--env", "bandit"]))
    assert settings.tags == ["Walk", "bandit"]
    assert Sessions(settings).named == {"Walk": (), "bandit": ()}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--env", "bandit", "--config-name", "base"],
        ["--env", "no_such_env"],
        ["--env", "support.faulty_envs:Walk", "--env", "support.toy_envs:Walk"],
        ["--env", "bandit", "agent_proxy.action_sep=''"],
        ["--config-name", "base", "agent_proxy.max_actions_per_turn=0"],
        ["--env", "bandit", "--max-sessions", "0"],
        ["--env", "bandit", "--idle-timeout", "nan"],
    ],
)
def test_what_cannot_be_served_is_refused(words):
    try:
        assert main([*words, "--port", "0"]) == 2
    except SystemExit as stopped:  # argparse's own
        assert stopped.code == 2


def strict(text):
    """A text as JSON, by its standard."""

    def refuse(constant):
        raise ValueError(constant)

    text.encode()
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("action", ["nan", "inf", "half", "info", "deep", "object", "raises"])
def test_a_turn_that_was_played_is_answered(serve, tmp_path, action, journaled):
    client = serve(journal_dir=tmp_path if journaled else None)
    client.post("/s/mine/reset", json={"env": "Odd", "seed": 1})
    for number in (1, 2):
        asked = {"action": {"text": action}, "request_id": str(number)}
        told = client.post("/s/mine/step", json=asked)
        again = client.post("/s/mine/step", json=asked)
        assert told.status_code == 200 and told.text == again.text
        assert strict(told.text)["metadata"]["turn"] == number
        with client.websocket_connect("/s/mine/ws") as socket:
            socket.send_json({"type": "step", "data": asked["action"], "request_id": str(number)})
            assert strict(socket.receive_text())["data"] == strict(told.text)
        if strict(told.text)["done"]:
            break
    if journaled:  # played again from the journal
        client.sessions.attach("mine").used -= 2 * client.sessions.settings.idle_timeout
        client.portal.call(client.sessions.sweep)
        if not strict(told.text)["done"]:
            assert client.post("/s/mine/step", json={"action": {"text": action}}).status_code == 200
            number += 1
    assert client.get("/s/mine/state").json()["step_count"] == number


def connect(client, token):
    with client.websocket_connect(f"/s/{token}/ws") as socket:
        socket.send_json({"type": "state"})
        socket.receive_json()


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client, token: client.get(f"/s/{token}/state"),
        lambda client, token: client.delete(f"/s/{token}"),
        lambda client, token: client.post(f"/s/{token}/reset", json={"seed": -1}),
        lambda client, token: client.post(f"/s/{token}/step", json={"action": {"text": "Up"}}),
        lambda client, token: client.post(f"/s/{token}/step", content=b"{"),
        connect,
    ],
)
def test_without_an_episode_there_is_no_session(serve, tmp_path, ask, journaled):
    client = serve(journal_dir=tmp_path if journaled else None, max_sessions=2)
    for number in range(4):
        ask(client, f"unknown{number}")
        assert until(lambda: not len(client.sessions))  # a closed connection is let go of after its client has left
    assert client.get("/s/unknown/state").json() == {"episode_id": None, "step_count": 0}
    assert client.post("/s/mine/reset", json={"seed": 1}).status_code == 200
    client.post("/s/other/reset", json={"seed": 1})
    assert len(client.sessions) == 2
    assert len([*tmp_path.iterdir()]) == (2 if journaled else 0)
