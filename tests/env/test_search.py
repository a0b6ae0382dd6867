"""Search: the generated world, indexes, servers, answers, data of the user's, and rollouts in workers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ragen.env.search.config import SearchEnvConfig
from ragen.env.search.dialogue import read_action
from ragen.env.search.env import SearchEnv
from ragen.env.search.world import solve
from ragen.errors import SearchError
from ragen.llm_agent.es_manager import EnvStateManager
from support.episodes import config, kill_workers

DOCUMENTS = [
    {"id": "0", "title": "Oak", "text": "The oak is a tree with acorns."},
    {"id": "1", "contents": '"Elm"\nThe elm is a tree that beetles kill.'},
    {"title": "Pike", "text": "The pike is a fish."},
]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def make() -> Iterator[Callable[..., SearchEnv]]:
    made: list[SearchEnv] = []

    def build(**settings: Any) -> SearchEnv:
        made.append(SearchEnv(SearchEnvConfig(**settings)))
        return made[-1]

    yield build
    for env in made:
        env.close()


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def own(tmp_path: Path, rows: int = 40, **settings: Any) -> dict[str, Any]:
    questions = [{"question": f"Question number {n}?", "ground_truth": [f"the {n}", "one", "yes"]} for n in range(rows)]
    corpus = lines(tmp_path / "corpus.jsonl", *DOCUMENTS)
    return {"corpus": corpus, "questions": lines(tmp_path / "questions.jsonl", *questions), **settings}


def solved(env: SearchEnv, seed: int, mode: str) -> float:
    """The reward of the player that reads everything."""
    told, done, reward = env.reset(seed, mode), False, 0.0
    while not done:
        shown, reward, done, _ = env.step(solve(told) or "")
        told += f"\n{shown}"
    return reward


# The generated world


def test_a_player_that_follows_the_passages_answers_generated_questions(make: Callable[..., SearchEnv]) -> None:
    env = make()
    for mode in ("train", "val"):
        assert sum(solved(env, seed, mode) for seed in range(40)) >= 38


# Actions and answers


@pytest.mark.parametrize(
    ("action", "read"),
    [
        (" search[ blue whale ] ", ("search", "blue whale")),
        ("Search[a [b] c]", ("search", "a [b] c")),
        ("finish[Paris]", ("answer", "Paris")),
        ("I look. <search>blue\nwhale</search>", ("search", "blue\nwhale")),
        ("<search>x</search><answer>Paris</answer>", ("answer", "Paris")),
        ("Paris", ("answer", "Paris")),
        ("search[]", ("search", "")),
        ("  ", ("none", "")),
        ("x" * 10_001, ("none", "")),
    ],
)
def test_actions_are_read_in_every_form(action: str, read: tuple[str, str]) -> None:
    assert read_action(action) == read


@pytest.mark.parametrize(
    ("settings", "answer", "reward", "success"),
    [
        ({}, "ONE!", 1.0, True),
        ({}, "one of them", 0.0, False),
        ({"reward": "f1"}, "one of them", 0.5, True),
        ({"reward": "f1", "f1_threshold": 0.6, "incorrect_reward": -1}, "one of them", -1.0, False),
        ({"correct_reward": 2, "reward": "f1"}, "one", 2.0, True),
        ({"reward": "f1"}, "yes it is", 0.0, False),
    ],
)
def test_rewards_follow_the_configuration(
    settings: dict[str, Any], answer: str, reward: float, success: bool, tmp_path: Path, make: Callable[..., SearchEnv]
) -> None:
    env = make(**own(tmp_path), **settings)
    env.reset(0)
    _, got, done, info = env.step(f"answer[{answer}]")
    assert (got, done, info["success"]) == (reward, True, success)
    assert env.rollout_info()["answers"][1] == "one"


# Indexes and data of the user's


def test_a_corpus_is_searched_by_stems_in_both_forms_of_rows(tmp_path: Path, make: Callable[..., SearchEnv]) -> None:
    env = make(**own(tmp_path, k=1))
    env.reset(0)
    assert env.step("search[beetle]")[0].startswith("[1] Elm: The elm is a tree that beetles kill.\n")
    assert env.step("search[fishes]")[0].startswith("[1] Pike: ")
    assert env.step("search[quasar]")[0].startswith("Nothing was found.")


# A retrieval server


class Served(ThreadingHTTPServer):
    """A retrieval server of RAGEN's form or of Search-R1's, whose every answer is another one."""

    daemon_threads = True

    def __init__(self, form: str) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.form, self.asked = form, list[dict[str, Any]]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Reply(BaseHTTPRequestHandler):
    """One answer."""

    server: Served

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        number, form = len(self.server.asked), self.server.form
        text = f"answer {number} to {asked['query']}"
        replies: dict[str, Any] = {
            "ragen": {"results": [{"id": "1", "content": text, "score": 0.5}] * asked["top_k"]},
            "search-r1": {"result": [[{"document": {"contents": f'"T"\n{text}'}, "score": 1}] * asked["topk"]]},
            "other": {"hits": []},
        }
        self.send_response(500 if form == "broken" else 302 if form == "elsewhere" else 200)
        self.send_header("Location", "/other")
        self.end_headers()
        self.wfile.write(json.dumps(replies.get(form, {})).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def serve() -> Iterator[Callable[[str], Served]]:
    servers: list[Served] = []

    def start(form: str) -> Served:
        servers.append(Served(form))
        threading.Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def served_config(server: Served, tmp_path: Path) -> dict[str, Any]:
    return {"questions": own(tmp_path)["questions"], "retrieval_server_url": server.url, "k": 2}


FORMS = {"ragen": "[1] answer 1", "search-r1": "[1] T: answer 1", "broken": "", "other": "", "elsewhere": ""}


@pytest.mark.parametrize("form", FORMS)
def test_both_kinds_of_servers_are_read_and_others_are_an_error_of_the_environment(
    form: str, serve: Callable[[str], Served], tmp_path: Path, make: Callable[..., SearchEnv]
) -> None:
    env = make(**served_config(serve(form), tmp_path))
    env.reset(0)
    if FORMS[form]:
        assert env.step("search[Elm]")[0].startswith(f"{FORMS[form]} to Elm\n[2] ")
    else:
        with pytest.raises(SearchError):
            env.step("search[Elm]")


# Behind the manager


def test_what_a_server_said_before_a_kill_stands(serve: Callable[[str], Served], tmp_path: Path) -> None:
    server = serve("ragen")
    tags = {"Served": {"env_type": "search", "env_config": served_config(server, tmp_path), "max_actions_per_traj": 9}}
    with EnvStateManager(config(tags, [("Served", 2)], use_multiprocessing=True)) as manager:
        active = manager.reset()
        for turn in range(3):
            if turn == 2:
                kill_workers(manager)
            said = {"actions": [f"search[turn {turn}]"], "llm_response": "", "llm_raw_response": ""}
            active = manager.step([{"env_id": cache["env_id"], **said} for cache in active])
        states = manager.get_rollout_states()
    for state in states:
        shown = [turn["state"] for turn in state["history"][1:]]
        assert len(shown) == 3
        assert all(f"to turn {turn}" in text for turn, text in enumerate(shown))
    queries = [asked["query"] for asked in server.asked]
    assert queries.count("turn 0") == queries.count("turn 1") == queries.count("turn 2") == 2
