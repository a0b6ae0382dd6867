"""Sessions over the wire: what they answer, and that cuts, kills and restarts change no episode."""

import base64
import errno
import io
import json
import os
import shutil
import signal
import threading

import pytest
from starlette.websockets import WebSocketDisconnect

from ragen.env import resolve_env
from ragen.errors import ConfigError
from ragen.serve.journal import Journal
from ragen.serve.sessions import ServeSettings, Sessions

MOVES = ["Right", "Down || Left", "<think>so</think><answer>Right</answer>", "nonsense", "Down"]


def ask(socket, kind, request_id=None, **data):
    """The data of an answer; errors come as ``(code, message)``."""
    message = {"type": kind, "data": data}
    if request_id is not None:
        message["request_id"] = request_id
    socket.send_json(message)
    answer = socket.receive_json()
    return (answer["data"]["code"], answer["data"]["message"]) if answer["type"] == "error" else answer["data"]


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


def test_the_last_allowed_action_ends_the_episode(serve):
    with serve().websocket_connect("/ws") as socket:
        answers = episode(socket, ["Up"] * 5, env="Box")
        assert [answer["done"] for answer in answers] == [False] * 5 + [True]
        assert answers[-1]["metadata"]["truncated"] is True
        code, message = ask(socket, "step", text="Up")
        assert code == "EXECUTION_ERROR" and "over" in message


def test_images_are_png(serve):
    from PIL import Image

    with serve().websocket_connect("/ws") as socket:
        shown = ask(socket, "reset", env="Box", seed=1)["observation"]
    image = Image.open(io.BytesIO(base64.b64decode(shown["images"][0])))
    assert image.format == "PNG" and image.size[0] > 8


@pytest.mark.parametrize("cut_after", [1, 3])
def test_a_session_goes_on_after_a_cut(serve, whole, cut_after):
    client = serve()
    with client.websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:cut_after])
    with client.websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "state")["step_count"] == cut_after
        assert [*begun, *turns(socket, MOVES[cut_after:])] == whole


def test_a_second_connection_takes_the_session_over(serve, whole):
    client = serve()
    with client.websocket_connect("/s/mine/ws") as first:
        begun = episode(first, MOVES[:2])
        with client.websocket_connect("/s/mine/ws") as second:
            with pytest.raises(WebSocketDisconnect) as ended:
                first.receive_json()
            assert ended.value.code == 4001
            assert [*begun, *turns(second, MOVES[2:])] == whole


def test_what_is_sent_on_a_connection_that_was_taken_over_is_not_played(serve, whole):
    client = serve()
    with client.websocket_connect("/s/mine/ws") as first:
        begun = episode(first, MOVES[:2])
        with client.websocket_connect("/s/mine/ws") as second:
            first.send_json({"type": "step", "data": {"text": "Up"}})
            assert [*begun, *turns(second, MOVES[2:])] == whole


def test_close_ends_a_session_for_good(serve, tmp_path):
    client = serve(journal_dir=tmp_path)
    with client.websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:1])
        socket.send_json({"type": "close"})
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()
    assert len(client.sessions) == 0 and [each.name for each in tmp_path.iterdir()] == ["servers"]
    with client.websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "state") == {"episode_id": None, "step_count": 0}


def test_a_killed_worker_changes_no_episode(serve, whole):
    client = serve(lanes=True)
    with client.websocket_connect("/ws") as socket:
        begun = episode(socket, MOVES[:2])
        for stats in client.sessions.service._envs.stats():
            if stats.pid and stats.pid != os.getpid():
                os.kill(stats.pid, signal.SIGKILL)
        assert [*begun, *turns(socket, MOVES[2:])] == whole


def test_a_server_that_was_started_again_goes_on_from_the_journal(serve, whole, tmp_path):
    first = serve(journal_dir=tmp_path)
    with first.websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:3])
    first.__exit__(None, None, None)
    with serve(journal_dir=tmp_path).websocket_connect("/s/mine/ws") as socket:
        state = ask(socket, "state")
        assert (state["step_count"], state["episode_id"], state["seed"]) == (3, "e", 5)
        assert [*begun, *turns(socket, MOVES[3:])] == whole
    first.__enter__ = first.__exit__ = lambda *_: None


def test_a_line_that_was_cut_short_was_never_answered(serve, whole, tmp_path):
    with serve(journal_dir=tmp_path / "first").websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:3])
    (path,) = (tmp_path / "first").glob("*.jsonl")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / path.name).write_bytes(path.read_bytes()[:-9])
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "state")["step_count"] == 2
        assert [*begun[:3], *turns(socket, MOVES[2:])] == whole


def test_what_a_server_that_was_killed_in_a_reset_left_goes_with_its_session(serve, tmp_path):
    with serve(journal_dir=tmp_path / "first").websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:1])
    (path,) = (tmp_path / "first").glob("*.jsonl")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / f".{path.name}.part").write_text('{"version"')
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "state")["step_count"] == 0
        assert not list((tmp_path / "second").glob("*.part"))


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_what_a_lost_machine_had_not_written_of_a_journal_is_taken_from_its_log(serve, whole, tmp_path, kept):
    """Of a session's file only the first line is synced by itself; turns are, in the server's log."""
    with serve(journal_dir=tmp_path / "first").websocket_connect("/s/mine/ws") as socket:
        ask(socket, "reset", seed=6)
        ask(socket, "step", text="Right")
        begun = episode(socket, MOVES[:4])
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    (path,) = (tmp_path / "second").glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: 1 + kept]) + lines[1 + kept][:9])
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "state")["step_count"] == 4
        assert [*begun, *turns(socket, MOVES[4:])] == whole


def test_a_long_log_is_begun_anew_and_loses_nothing(serve, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("ragen.serve.journal.LARGEST_LOG", 1)
    client = serve(journal_dir=tmp_path / "first")
    with client.websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:4])
        assert sorted(each.suffix for each in (tmp_path / "first" / "servers").iterdir()) == [
            ".lock",
            ".lock",
            ".log",
            ".old",
        ]
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        assert [*begun, *turns(socket, MOVES[4:])] == whole


def test_journals_are_for_their_owner_alone(serve, tmp_path, monkeypatch):
    monkeypatch.setattr("ragen.serve.journal.LARGEST_LOG", 1)
    client = serve(journal_dir=tmp_path / "journals")
    with client.websocket_connect("/s/mine/ws") as socket:
        episode(socket)
    found = [tmp_path / "journals", *(tmp_path / "journals").rglob("*")]
    assert len(found) > 5
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in found} == {(True, 0o700), (False, 0o600)}


def test_journals_outlive_every_clock(serve, whole, tmp_path):
    first = serve(journal_dir=tmp_path)
    with first.websocket_connect("/s/mine/ws") as socket:
        answers = episode(socket, MOVES[:2])
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    first.sessions.attach("mine").used -= 2 * first.sessions.settings.idle_timeout
    first.portal.call(first.sessions.sweep)
    assert not len(first.sessions)
    with serve(journal_dir=tmp_path).websocket_connect("/s/mine/ws") as socket:
        answers += turns(socket, MOVES[2:])
    assert answers == whole


def test_an_environment_that_shows_something_else_than_the_journal_is_refused(serve, tmp_path):
    with serve(journal_dir=tmp_path / "first").websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:2])
    (path,) = (tmp_path / "first").glob("*.jsonl")
    head, *rest = map(json.loads, path.read_text().splitlines())
    head["head"]["seed"] = 6
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / path.name).write_text("".join(json.dumps(line) + "\n" for line in (head, *rest)))
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        for _ in range(2):
            code, message = ask(socket, "step", text="Right")
            assert code == "SESSION_ERROR" and "something else at its reset" in message
        assert ask(socket, "reset", seed=5)["done"] is False


def test_a_damaged_journal_is_named(serve, tmp_path):
    with serve(journal_dir=tmp_path / "first").websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:2])
    (path,) = (tmp_path / "first").glob("*.jsonl")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / path.name).write_text("{}\n")
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        code, message = ask(socket, "step", text="Right")
        assert code == "SESSION_ERROR" and path.name in message


def test_two_servers_cannot_have_one_session(serve, tmp_path):
    one, other = serve(journal_dir=tmp_path), serve(journal_dir=tmp_path)
    with one.websocket_connect("/s/mine/ws") as mine, other.websocket_connect("/s/mine/ws") as theirs:
        assert ask(mine, "reset", seed=5)["done"] is False
        code, message = ask(theirs, "reset", seed=5)
        assert code == "SESSION_ERROR" and "another server" in message
        assert ask(mine, "step", text="Right")["metadata"]["turn"] == 1


def test_a_call_that_comes_again_with_its_id_is_answered_and_not_played(serve, tmp_path):
    first = serve(journal_dir=tmp_path / "first")
    with first.websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "reset", "r0", seed=5) == ask(socket, "reset", "r0", seed=5)
        played = ask(socket, "step", "s1", text="Right")
        assert ask(socket, "step", "s1", text="Right") == played
    (path,) = (tmp_path / "first").glob("*.jsonl")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / path.name).write_bytes(path.read_bytes())
    with serve(journal_dir=tmp_path / "second").websocket_connect("/s/mine/ws") as socket:
        assert ask(socket, "step", "s1", text="Right") == played
        assert ask(socket, "state")["step_count"] == 1
        assert ask(socket, "step", "s2", text="Right")["metadata"]["turn"] == 2


def test_a_lost_answer_is_said_to_be_ambiguous_once(serve):
    client = serve()
    with client.websocket_connect("/s/mine/ws") as socket:
        episode(socket, MOVES[:1])
        client.sessions.attach("mine").note_lost("step")
        code, message = ask(socket, "step", text="Right")
        assert code == "SESSION_ERROR" and "was played" in message and "state" in message
        assert ask(socket, "step", text="Right")["metadata"]["turn"] == 2


def test_a_turn_that_cannot_be_kept_has_not_happened(serve, whole, tmp_path, monkeypatch):
    write = Journal.write

    def full(self, data):
        monkeypatch.setattr(Journal, "write", write)
        raise OSError(errno.ENOSPC, "no space left")

    with serve(journal_dir=tmp_path).websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:2])
        monkeypatch.setattr(Journal, "write", full)
        code, message = ask(socket, "step", text=MOVES[2])
        assert code == "EXECUTION_ERROR" and "no space left" in message
        assert ask(socket, "state")["step_count"] == 2
        assert [*begun, *turns(socket, MOVES[2:])] == whole


def test_an_idle_session_is_closed_and_comes_back_from_its_journal(serve, whole, tmp_path):
    client = serve(journal_dir=tmp_path)
    with client.websocket_connect("/s/mine/ws") as socket:
        begun = episode(socket, MOVES[:2])
        client.sessions.attach("mine").used -= 2 * client.sessions.settings.idle_timeout
        client.portal.call(client.sessions.sweep)
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()
    assert len(client.sessions) == 0
    with client.websocket_connect("/s/mine/ws") as socket:
        assert [*begun, *turns(socket, MOVES[2:])] == whole


def test_sessions_play_beside_each_other(serve, whole):
    client, played = serve(lanes=True), {}

    def play(number):
        with client.websocket_connect(f"/s/token-{number}/ws") as socket:
            played[number] = episode(socket)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [played.get(number) for number in range(8)] == [whole] * 8


def test_nothing_to_serve_is_refused():
    with pytest.raises(ConfigError, match="nothing to serve"):
        Sessions(ServeSettings({}, ()))
