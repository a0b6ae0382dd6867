"""The wire: its messages, its errors, its limits, and who may speak."""

import pytest
from starlette.websockets import WebSocketDisconnect

from ragen.errors import ConfigError
from ragen.serve.app import MAX_FRAME
from ragen.serve.command import main, parser, read_token, settings_of
from ragen.serve.sessions import Sessions


def error_of(socket, text):
    socket.send_text(text)
    answer = socket.receive_json()
    assert answer["type"] == "error"
    return answer["data"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("{", "INVALID_JSON", "Invalid JSON"),
        ("[" * 100_000, "INVALID_JSON", "Invalid JSON"),
        ("[]", "VALIDATION_ERROR", "object"),
        ('{"type": "jump"}', "UNKNOWN_TYPE", "'jump'"),
        ('{"type": ["reset"]}', "UNKNOWN_TYPE", "reset"),
        ('{"type": "step", "data": {"text": "Up"}}', "EXECUTION_ERROR", "send reset first"),
        ('{"type": "step", "data": {"move": "Up"}}', "VALIDATION_ERROR", "move"),
        ('{"type": "step", "data": {"text": 3}}', "VALIDATION_ERROR", "text is 3"),
        ('{"type": "step", "data": "Up"}', "VALIDATION_ERROR", "an object"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR", "seed = -1"),
        ('{"type": "reset", "data": {"seed": true}}', "VALIDATION_ERROR", "seed = True"),
        ('{"type": "reset", "data": {"env": "os:system"}}', "VALIDATION_ERROR", "Lake"),
        ('{"type": "reset", "data": {"mode": "test"}}', "VALIDATION_ERROR", "mode"),
        ('{"type": "reset", "data": {}, "request_id": 7}', "VALIDATION_ERROR", "request_id"),
        (f'{{"type": "{"x" * MAX_FRAME}"}}', "VALIDATION_ERROR", "at most"),
    ],
)
def test_a_message_that_is_none_is_refused_and_the_session_goes_on(serve, text, code, says):
    with serve().websocket_connect("/ws") as socket:
        fault = error_of(socket, text)
        assert fault["code"] == code and says in fault["message"]
        socket.send_json({"type": "reset", "data": {"seed": 1}})
        assert socket.receive_json()["type"] == "observation"


def test_a_full_server_says_how_full(serve):
    client = serve(max_sessions=1)
    with client.websocket_connect("/ws") as first:
        first.send_json({"type": "reset"})
        first.receive_json()
        with client.websocket_connect("/ws") as second:
            fault = second.receive_json()["data"]
            assert fault["code"] == "CAPACITY_REACHED"
            assert (fault["active_sessions"], fault["max_sessions"]) == (1, 1)
        assert client.post("/reset", json={}).status_code == 503


def test_http_answers_what_openenv_asks_for(serve):
    client = serve()
    assert client.get("/health").json() == {"status": "healthy"}
    assert client.get("/list_environments").json() == ["Lake", "Walk", "Box"]
    metadata, schema = client.get("/metadata").json(), client.get("/schema").json()
    assert metadata["name"] == "Lake" and metadata["description"]
    assert set(schema) == {"action", "observation", "state", "reset_observation"}
    assert schema["action"]["required"] == ["text"]
    paths = client.get("/openapi.json").json()
    assert paths["info"]["version"] and {"/reset", "/step", "/state"} <= set(paths["paths"])
    assert client.post("/mcp", json={}).json()["jsonrpc"] == "2.0"
    assert client.get("/state").json() == {"episode_id": None, "step_count": 0}


def test_http_without_a_session_plays_one_call_on_a_fresh_environment(serve):
    client = serve()
    one, other = (client.post("/reset", json={"seed": 4}).json() for _ in range(2))
    assert one["observation"] == other["observation"] and one["done"] is False
    assert client.post("/step", json={"action": {"text": "Up"}}).json()["metadata"]["turn"] == 1
    assert client.post("/step", json={"text": "Up"}).status_code == 422
    assert client.post("/reset", content=b"{").status_code == 400
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


@pytest.mark.parametrize("shown", [None, "Bearer wrong-token", "Bearer ", "secret-token"])
def test_without_the_token_nothing_is_answered_but_health(serve, shown):
    client = serve(auth_token="secret-token")
    headers = {} if shown is None else {"Authorization": shown}
    assert client.get("/health", headers=headers).status_code == 200
    assert client.post("/reset", json={}, headers=headers).status_code == 401
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws", headers=headers) as socket:
        socket.receive_json()


def test_the_token_lets_in(serve):
    client, headers = serve(auth_token="secret-token"), {"Authorization": "Bearer secret-token"}
    assert client.get("/schema", headers=headers).status_code == 200
    with client.websocket_connect("/ws", headers=headers) as socket:
        socket.send_json({"type": "state"})
        assert socket.receive_json()["type"] == "state"


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example:8000"}])
def test_a_page_of_another_site_is_not_let_in_without_a_token(serve, headers):
    client = serve(hosts=("localhost", "testserver"))
    assert client.get("/schema").status_code == 200
    assert client.get("/schema", headers={"Origin": "http://testserver"}).status_code == 200
    assert client.get("/schema", headers=headers).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "box-1", "10.0.0.1"])
def test_listening_beyond_this_machine_needs_a_token(host, tmp_path, capsys):
    with pytest.raises(ConfigError, match="--auth-token-file"):
        read_token(None, host)
    assert main(["--env", "bandit", "--host", host]) == 2
    assert "--auth-token-file" in capsys.readouterr().err
    (tmp_path / "token").write_text(" secret-token\n")
    assert read_token(tmp_path / "token", host) == "secret-token"


def test_a_token_that_is_none_is_refused(tmp_path):
    (tmp_path / "short").write_text("abc\n")
    for name in ("short", "missing"):
        with pytest.raises(ConfigError, match=name):
            read_token(tmp_path / name, "127.0.0.1")


def test_a_class_is_served_under_its_own_name():
    settings = settings_of(parser().parse_args(["--env", "support.faulty_envs:Walk", "--env", "bandit"]))
    assert settings.tags == ["Walk", "bandit"]
    assert Sessions(settings).named == {"Walk": (), "bandit": ()}


ALIKE = ["--env", "support.faulty_envs:Walk", "--env", "support.toy_envs:Walk"]


NO_SEPARATOR = ["--env", "bandit", "agent_proxy.action_sep=''"]
NO_ACTIONS = ["--config-name", "base", "agent_proxy.max_actions_per_turn=0"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--env", "bandit", "--config-name", "base"],
        ["--env", "no_such_env"],
        ALIKE,
        NO_SEPARATOR,
        NO_ACTIONS,
    ],
)
def test_what_cannot_be_served_is_refused(words, capsys):
    assert main([*words, "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_limits_are_numbers_that_can_be(capsys):
    for words in (["--max-sessions", "0"], ["--idle-timeout", "nan"], ["--idle-timeout", "0"]):
        with pytest.raises(SystemExit):
            parser().parse_args(words)
    assert "--max-sessions" in capsys.readouterr().err


def test_tasks_are_listed_by_split_and_played_by_index(serve):
    client = serve()
    assert client.get("/Walk/splits").json() == [
        {"name": "train", "type": "train"},
        {"name": "val", "type": "validation"},
    ]
    assert client.post("/walk/num_tasks", json={"split": "val"}).json() == {"num_tasks": 2**32}
    task = client.post("/Walk/task", json={"split": "val", "index": 12}).json()["task"]
    assert (task["env"], task["split"], task["index"]) == ("Walk", "val", 12)
    few = client.post("/s/mine/Walk/task_range", json={"split": "val", "start": 11, "stop": 13}).json()["tasks"]
    assert few[1] == task and len(few) == 2
    all_of_them = client.post("/Walk/tasks", json={"split": "val"}).json()
    assert all_of_them["env_name"] == "Walk" and all_of_them["tasks"][12] == task
    assert (
        client.post("/Walk/task_range", json={"split": "train", "start": -2}).json()["tasks"][-1]["seed"] == 2**32 - 1
    )
    played = [
        client.post("/reset", json={**row, "episode_id": "e"}).json()
        for row in (task, {"env": "Walk", "split": "val", "index": 12})
    ]
    assert (
        played[0]
        == played[1]
        == client.post("/reset", json={"env": "Walk", "mode": "val", "seed": 12, "episode_id": "e"}).json()
    )


@pytest.mark.parametrize(
    ("path", "asked", "status", "says"),
    [
        ("/Maze/num_tasks", {"split": "train"}, 404, "Lake, Walk, Box"),
        ("/Walk/num_tasks", {"split": "test"}, 422, "train, val"),
        ("/Walk/num_tasks", {}, 422, "split is None"),
        ("/Walk/task", {"split": "val", "index": "2"}, 422, "index is '2'"),
        ("/Walk/task", {"split": "val", "index": -1}, 400, "index"),
        ("/Walk/task", {"split": "val", "index": 2**32}, 400, "index"),
        ("/Walk/task_range", {"split": "val", "start": 1.5}, 422, "start is 1.5"),
        ("/Walk/task_range", {"split": "val"}, 422, "at most 10000"),
        ("/reset", {"split": "val", "mode": "train"}, 422, "mode and split"),
        ("/reset", {"seed": 1, "index": 2}, 422, "seed and index"),
        ("/reset", {"split": "test"}, 422, "train, val"),
        ("/reset", {"index": -1}, 422, "-1"),
    ],
)
def test_what_is_no_task_is_refused(serve, path, asked, status, says):
    answer = serve().post(path, json=asked)
    assert answer.status_code == status and says in answer.json()["message"]


def test_all_that_openenv_asks_for_is_below_a_session_too(serve):
    client = serve()
    for path in ("health", "metadata", "schema", "openapi.json", "list_environments"):
        assert client.get(f"/s/mine/{path}").json() == client.get(f"/{path}").json()
    listed = client.post("/s/mine/step", json={"action": {"type": "list_tools"}}).json()["observation"]["tools"]
    assert [tool["name"] for tool in listed] == ["begin", "act"]


def rpc(client, method, path="/mcp", **params):
    answer = client.post(path, json={"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).json()
    assert answer["id"] == 7 and answer["jsonrpc"] == "2.0"
    return answer.get("result") or answer["error"]


def test_tools_play_in_a_session_without_a_socket(serve):
    client = serve()
    assert [tool["name"] for tool in rpc(client, "tools/list")["tools"]] == ["begin", "act"]
    session = rpc(client, "openenv/session/create")["session_id"]
    begun = rpc(client, "tools/call", name="begin", arguments={"seed": 5}, session_id=session)["data"]
    rpc(client, "tools/call", name="act", arguments={"text": "Right"}, session_id=session)
    with client.websocket_connect(f"/ws?session_id={session}") as socket:
        socket.send_json({"type": "state"})
        assert socket.receive_json()["data"]["step_count"] == 1
        socket.send_json({"type": "reset", "data": {"seed": 5}})
        assert socket.receive_json()["data"]["observation"] == begun["observation"]
    assert rpc(client, "openenv/session/close", session_id=session)["closed"] is True
    assert len(client.sessions) == 0
    kept = rpc(client, "openenv/session/create", path="/s/mine/mcp")
    assert kept == {"session_id": "mine"} and len(client.sessions) == 1


@pytest.mark.parametrize(
    ("method", "params", "code", "says"),
    [
        ("tools/jump", {}, -32601, "tools/jump"),
        ("tools/call", {"name": "act"}, -32602, "session_id"),
        ("tools/call", {"name": "fly", "session_id": "mine"}, -32602, "begin and act"),
        ("tools/call", {"name": "act", "arguments": {"move": 1}, "session_id": "mine"}, -32602, "act takes text"),
        ("tools/call", {"name": "act", "arguments": {"text": "Up"}, "session_id": "mine"}, -32603, "send reset first"),
        ("openenv/session/close", {"session_id": "yours"}, -32602, "session_id"),
    ],
)
def test_what_tools_cannot_do_is_said(serve, method, params, code, says):
    client = serve()
    rpc(client, "openenv/session/create", path="/s/mine/mcp")
    error = rpc(client, method, **params)
    assert error["code"] == code and says in error["message"]
    assert client.post("/mcp", content=b"{").json()["error"]["code"] == -32600


def test_openenvs_actions_for_tools_are_answered_on_the_socket(serve):
    with serve().websocket_connect("/ws") as socket:

        def step(**action):
            socket.send_json({"type": "step", "data": action})
            return socket.receive_json()["data"]

        assert len(step(type="list_tools")["observation"]["tools"]) == 2
        early = step(type="call_tool", tool_name="act", arguments={"text": "Up"})
        assert early["observation"]["error"]["error_type"] == "execution_error"
        step(type="call_tool", tool_name="begin", arguments={"seed": 5})
        played = step(type="call_tool", tool_name="act", arguments={"text": "Right"})
        assert played["observation"]["result"]["data"]["done"] is played["done"] is False
        assert played["metadata"]["turn"] == 1


def said(text):
    return {"output": [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": text}]}]}


def test_the_agent_of_nemo_gym_has_a_session_by_its_cookie(serve):
    client, params = serve(), {"responses_create_params": {"input": []}}
    begun = client.post("/reset", json={**params, "verifier_metadata": {"env": "Box", "seed": 5}}).json()
    assert set(begun) == {"observation", "info"} and begun["info"]["seed"] == 5
    steps = [client.post("/step", json={**params, "response": said("<answer>Up</answer>")}).json() for _ in range(5)]
    assert [step["info"]["turn"] for step in steps] == [1, 2, 3, 4, 5]
    assert [(step["terminated"], step["truncated"]) for step in steps] == [(False, False)] * 4 + [(False, True)]
    assert len(client.sessions) == 0
    assert client.post("/reset", json={**params, "seed": 6}).json()["info"]["seed"] == 6
    wrong = client.post("/step", json={**params, "response": {"output": "Up"}})
    assert wrong.status_code == 422 and "Responses API" in wrong.json()["message"]
    client.cookies.clear()
    lost = client.post("/step", json={**params, "response": said("Up")})
    assert lost.status_code == 422 and "cookie" in lost.json()["message"]
