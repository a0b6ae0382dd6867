"""Sessions over the wire: cuts, kills and restarts change no episode."""

import base64
import errno
import io
import json
import os
import signal

import pytest
from starlette.websockets import WebSocketDisconnect

from envlanes.ragen import journal
from ragen.env import resolve_env

MOVES = ["Right", "Down || Left", "<think>so</think><answer>Right</answer>", "nonsense", "Down"]


def ask(socket, kind, request_id=None, **data):
    """The data of an answer; of an error its code."""
    socket.send_json({"type": kind, "data": data} | ({} if request_id is None else {"request_id": request_id}))
    answer = socket.receive_json()
    return answer["data"]["code"] if answer["type"] == "error" else answer["data"]


def episode(socket, moves=MOVES, **options):
    """A reset and its turns."""
    return [ask(socket, "reset", **{"seed": 5, "episode_id": "e", **options}), *turns(socket, moves)]


def turns(socket, moves):
    return [ask(socket, "step", text=move) for move in moves]


@pytest.fixture
def whole(serve):
    """The episode, played without a cut."""
    with serve().websocket_connect("/ws") as socket:
        return episode(socket)


def expire(client):
    """Sweep as if the session had been idle for long."""
    client.sessions.attach("mine").used -= 2 * client.sessions.settings.idle_timeout
    client.portal.call(client.sessions.sweep)
    assert not len(client.sessions)


def restarted(serve, folder, change=lambda data: data):
    """A server in a new folder, with a changed copy of the only journal of another."""
    (path,) = folder.glob("*.jsonl")
    (folder / "next").mkdir()
    (folder / "next" / path.name).write_bytes(change(path.read_bytes()))
    return serve(journal_dir=folder / "next")


def test_an_episode_is_that_of_the_environment_itself(whole):
    env_class, config_class = resolve_env("frozen_lake")
    env = env_class(config_class())
    env.reset(seed=5)
    assert whole[0]["observation"] == {"text": env.render()} and whole[0]["reward"] is None
    for answer, actions in zip(whole[1:], ([3], [2, 1], [3], [], [2]), strict=True):
        rewards = [env.step(action)[1] for action in actions]
        assert answer["observation"] == {"text": env.render()}
        assert answer["reward"] == sum(rewards)
    assert [answer["metadata"]["malformed"] for answer in whole[1:]] == [False, False, False, True, False]


def test_the_last_allowed_action_ends_an_episode_of_images(serve):
    from PIL import Image

    with serve().websocket_connect("/ws") as socket:
        answers = episode(socket, ["Up"] * 5, env="Box")
        assert [answer["done"] for answer in answers] == [False] * 5 + [True]
        assert answers[-1]["metadata"]["truncated"] is True
        assert ask(socket, "step", text="Up") == "EXECUTION_ERROR"
    image = Image.open(io.BytesIO(base64.b64decode(answers[0]["observation"]["images"][0])))
    assert image.format == "PNG" and image.size[0] > 8


@pytest.mark.parametrize(
    ("accident", "journaled"),
    [("cut", False), ("taken over", False), ("worker killed", False), ("cut", True), ("idle", True), ("restart", True)],
)
def test_an_episode_goes_on_after(serve, whole, tmp_path, accident, journaled):
    client = serve(journal_dir=tmp_path if journaled else None, lanes=accident == "worker killed")
    with client.websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:2])
        if accident == "worker killed":
            for stats in client.sessions.service._envs.stats():
                if stats.pid and stats.pid != os.getpid():
                    os.kill(stats.pid, signal.SIGKILL)
            begun += turns(socket, MOVES[2:3])
        elif accident == "taken over":
            with client.websocket_connect("/s/mine/ws") as second:
                socket.send_json({"type": "step", "data": {"text": "Up"}})  # not played
                begun += turns(second, MOVES[2:3])
                with pytest.raises(WebSocketDisconnect) as ended:
                    socket.receive_json()
                assert ended.value.code == 4001
        elif accident == "idle":
            for path in tmp_path.iterdir():
                os.utime(path, (0, 0))  # journals outlive every clock
            expire(client)
            with pytest.raises(WebSocketDisconnect) as ended:
                socket.receive_json()
            assert ended.value.code == 1001
    if accident == "restart":
        client.__exit__(None, None, None)
        client.__exit__ = lambda *_: None
        client = serve(journal_dir=tmp_path)
    with client.websocket_connect("/s/mine/ws") as socket:
        state = ask(socket, "state")
        assert (state["step_count"], state["episode_id"], state["seed"]) == (len(begun) - 1, "e", 5)
        assert [*begun, *turns(socket, MOVES[len(begun) - 1 :])] == whole


@pytest.mark.parametrize("is_http", [False, True])
def test_close_ends_a_session_for_good(serve, tmp_path, is_http):
    client = serve(journal_dir=tmp_path)
    with client.websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:1])
        if is_http:
            client.delete("/s/mine")
        else:
            socket.send_json({"type": "close"})
        with pytest.raises(WebSocketDisconnect) as ended:
            socket.receive_json()
        assert ended.value.code == 1000
    assert len(client.sessions) == 0 and not [*tmp_path.iterdir()]
    with client.websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "state") == {"episode_id": None, "step_count": 0}


def other_seed(data):
    first, head, *rest = map(json.loads, data.splitlines())
    head["head"]["seed"] = 6
    return "".join(json.dumps(line) + "\n" for line in (first, head, *rest)).encode()


@pytest.mark.parametrize(
    "change",
    [other_seed, lambda data: b"{}\n", lambda data: data.replace(b'"turn":1,"actions"', b'"turn":2,"actions"')],
)
def test_a_journal_that_does_not_replay_is_refused_and_never_another_episode(serve, tmp_path, change):
    with serve(journal_dir=tmp_path).websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:2])
    client = restarted(serve, tmp_path, change)
    for _ in range(2):
        with client.websocket_connect("/s/mine/ws") as socket:
            assert ask(socket, "step", text="Right") == "SESSION_ERROR"


def test_two_servers_cannot_have_one_session(serve, tmp_path):
    one, other = serve(journal_dir=tmp_path), serve(journal_dir=tmp_path)
    with one.websocket_connect("/s/mine/ws") as mine, other.websocket_connect("/s/mine/ws") as theirs:
        for _ in range(2):  # the lock goes on with the file of the next episode
            assert ask(mine, "reset", seed=5)["done"] is False
        assert ask(theirs, "reset", seed=5) == "SESSION_ERROR"
        assert ask(mine, "step", text="Right")["metadata"]["turn"] == 1
    expire(one)
    with other.websocket_connect("/s/mine/ws") as theirs:
        assert ask(theirs, "step", text="Right")["metadata"]["turn"] == 2


def test_a_call_that_comes_again_with_its_id_is_answered_and_not_played(serve, tmp_path):
    with serve(journal_dir=tmp_path).websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "reset", "r0", seed=5) == ask(socket, "reset", "r0", seed=5)
        played = ask(socket, "step", "s1", text="Right")
        assert ask(socket, "step", "s1", text="Right") == played
    with restarted(serve, tmp_path).websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "step", "s1", text="Right") == played
        assert ask(socket, "state")["step_count"] == 1
        assert ask(socket, "step", "s2", text="Right")["metadata"]["turn"] == 2


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_call_that_cannot_be_kept_has_not_happened(serve, whole, tmp_path, monkeypatch, call):
    def full(file, data):
        write(file, data[:9])
        raise OSError(errno.ENOSPC, "no space left")

    write = os.write
    client = serve(journal_dir=tmp_path)
    with client.websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:2])
        monkeypatch.setattr(journal.os, "write", full)
        assert ask(socket, call, **({"text": MOVES[2]} if call == "step" else {"seed": 6})) == "EXECUTION_ERROR"
        monkeypatch.undo()
        begun += turns(socket, MOVES[2:3])
    expire(client)
    with client.websocket_connect("/s/mine/ws") as socket:
        assert [*begun, *turns(socket, MOVES[3:])] == whole
