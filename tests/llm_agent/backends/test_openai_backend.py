"""The API backend against a real HTTP server on localhost: requests, answers, faults, credentials, configuration."""

import json
import logging
import threading

import pytest
from PIL import Image

from ragen.config.schema import OpenAI
from ragen.errors import ConfigError
from ragen.llm_agent.backends import Reply, Request, Sampling, create_backend
from ragen.llm_agent.rollout.actor import in_vocabulary
from support.chat_server import chat_server, cut, cut_midway, fail, raw, say
from support.later import openai

KEY = "sk-test-0123456789abcdef"


def request(prompt, env_id=0):
    return Request(env_id, 0, "T", [{"role": "system", "content": "s"}, {"role": "user", "content": prompt}])


def ask(server, *prompts, sampling=None, **settings):
    """The replies to prompts, one request each."""
    backend = openai.OpenAIBackend("tiny", server.url, OpenAI(**{"timeout": 20.0, "max_retries": 1, **settings}))
    try:
        return backend.generate([request(prompt, i) for i, prompt in enumerate(prompts)], sampling or Sampling())
    finally:
        backend.close()


def answered(answers, **settings):
    """The reply to each of some answers, by name, and how often each was asked for."""
    with chat_server(lambda prompt, tries: answers[prompt]) as server:
        replies = dict(zip(answers, ask(server, *answers, **settings), strict=True))
        return replies, {json.loads(prompt): tries for prompt, tries in server.tries.items()}


def config(url, **actor):
    return {"actor": {"backend": "openai", "base_url": url, **actor}}


# Requests


SENT = {
    "sampling": (
        {"sampling": Sampling(temperature=0.5, top_p=0.9, top_k=40, max_tokens=77)},
        {"max_tokens": 77, "temperature": 0.5, "top_p": 0.9, "top_k": 40},
    ),
    "greedy": (
        {"sampling": Sampling(do_sample=False, temperature=0.7, top_p=0.9, top_k=5)},
        {"max_tokens": 400, "temperature": 0.0},
    ),
    "own fields": (
        {"request": {"max_tokens": None, "max_completion_tokens": 9, "temperature": 0.1, "extra": {"a": True}}},
        {"max_completion_tokens": 9, "temperature": 0.1, "extra": {"a": True}},
    ),
}


@pytest.mark.parametrize("case", SENT)
def test_a_request_has_the_model_the_chat_and_the_sampling(case):
    given, fields = SENT[case]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    with chat_server() as server:
        ask(server, "hello", **given)
        assert server.bodies == [{"model": "tiny", "messages": chat, **fields}]


def test_images_are_sent_as_data_urls():
    content = [{"type": "text", "text": "see"}, {"type": "image", "image": Image.new("RGB", (2, 2), "red")}]
    with chat_server() as server:
        ask(server, content)
        text, image = server.bodies[0]["messages"][1]["content"]
    assert text == content[0] and image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")


def test_replies_are_ordered_as_the_requests_and_the_slots_are_shared_by_all_threads():
    together = threading.Barrier(3)  # broken, and so an error for the request, unless three come at a time

    def script(prompt, tries):
        together.wait(20)
        return say(f"to {prompt}")

    with chat_server(script) as server:
        backend = openai.OpenAIBackend("tiny", server.url, OpenAI(max_concurrency=3, max_retries=0))
        found = {}

        def generate(place):
            found[place] = backend.generate([request(str(place + i)) for i in range(6)], Sampling())

        threads = [threading.Thread(target=generate, args=(place,)) for place in (0, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert backend.generate([], Sampling()) == []
        backend.close()
        backend.close()
        assert server.most_active == 3
    assert [reply.text for place in (0, 6) for reply in found[place]] == [f"to {number}" for number in range(12)]


# Answers


def told(prompt_ids=None, usage=None, **choice):
    """A completion as vLLM sends it if it is asked for tokens."""
    body = {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "ab"}, **choice}]}
    return raw(json.dumps(body | {"usage": usage} | ({} if prompt_ids is None else {"prompt_token_ids": prompt_ids})))


def steps(*log_probs):
    return {"content": [{"token": "t", "logprob": value} for value in log_probs]}


TEXT_ONLY = (None, None, None)
NO_LOG_PROBS = ([5, 6], None, [1, 2])
TOKENS = [
    ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-0.5, -1)}, ([5, 6], [-0.5, -1.0], [1, 2])),
    (None, {"token_ids": [5, 6], "logprobs": steps(-0.5, -1)}, TEXT_ONLY),
    ([1, 2], {"logprobs": steps(-0.5, -1)}, TEXT_ONLY),
    *(([1, 2], {"token_ids": ids}, TEXT_ONLY) for ids in (["5"], [5, 2**40], [5, -6], [])),
    ([1, 2], {"token_ids": [5, 6]}, NO_LOG_PROBS),
    *(
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-1, *log_prob)}, NO_LOG_PROBS)
        for log_prob in ([], [None], [float("nan")], [9])
    ),
]


def test_tokens_are_taken_if_the_server_sends_valid_ones_of_prompt_and_reply():
    replies, _ = answered({str(i): told(prompt_ids, **choice) for i, (prompt_ids, choice, _) in enumerate(TOKENS)})
    for (_, _, found), reply in zip(TOKENS, replies.values(), strict=True):
        assert (reply.text, reply.error) == ("ab", None)
        assert (reply.token_ids, reply.log_probs, reply.prompt_ids) == found


def test_tokens_that_the_tokenizer_does_not_have_are_not_taken():
    known, beyond = Reply("a", [5], [-1.0], [1, 9]), Reply("a", [5], [-1.0], [1, 10])
    assert in_vocabulary(known, 10) is known
    assert in_vocabulary(beyond, 10) == in_vocabulary(Reply("a", [10], None, [1]), 10) == Reply("a")


def test_finish_reasons_and_halves_of_surrogate_pairs_are_read():
    answers = {"stop": told(), "length": told(finish_reason="length"), "half": say("a\ud83d b")}
    replies, _ = answered(answers | {"failed": fail(400, "c\ud83d")})
    assert [reply.cut_off for reply in replies.values()] == [False, True, False, False]
    assert replies["half"].text == "a\ufffd b" and replies["failed"].error.endswith("c\ufffd")


def test_tokens_retries_and_dollars_are_counted():
    def script(prompt, tries):
        return say("x", 1000, 10) if tries else fail(503, retry_after_ms="1")

    with chat_server(script) as server:
        (reply,) = ask(server, "a", price={"prompt": 2.0, "completion": 10.0})
    tokens = {"prompt_tokens": 1000, "completion_tokens": 10, "cost": pytest.approx(0.0021)}
    assert reply.usage == {"requests": 2, "retries": 1, **tokens}


def test_an_invalid_count_is_not_counted():
    counts = [float("nan"), -1, "7", None, 10**400]
    usages = [*({"prompt_tokens": count, "completion_tokens": 3} for count in counts), "many"]
    replies, _ = answered({str(i): told(usage=usage) for i, usage in enumerate(usages)})
    sent = {"requests": 1, "retries": 0, "uncounted_replies": 1}
    assert [reply.usage for reply in replies.values()] == [sent | {"completion_tokens": 3}] * len(counts) + [sent]


# Faults


AT_ONCE = {"retry_after_ms": "1"}
PASSING = {
    **{str(status): fail(status, **AT_ONCE) for status in (408, 409, 429, 500, 502, 503)},
    "cut connection": cut,
    "cut in the middle": cut_midway,
    "malformed JSON": raw('{"id": "c1", "choices": ['),
    "no JSON": raw("<html>proxy</html>", "text/html"),
    "no choices": raw('{"id": "c1", "choices": []}'),
    "too deep": raw("[" * 200_000),
    "broken off": told(finish_reason="error"),
    "an error as a success": raw('{"error": {"message": "out of credits"}}'),
}
FINAL = {
    **{str(status): fail(status, "bad") for status in (400, 401, 403, 404, 422)},
    "asked to wait for long": fail(429, Retry_After="4000"),
    "an error with a code as a success": raw('{"error": {"message": "pay", "code": 402}}'),
}


def test_a_passing_fault_is_tried_again():
    with chat_server(lambda prompt, tries: say("fine") if tries else PASSING[prompt]) as server:
        replies = ask(server, *PASSING)
    assert {name: (reply.text, reply.error) for name, reply in zip(PASSING, replies, strict=True)} == dict.fromkeys(
        PASSING, ("fine", None)
    )
    assert {reply.usage["retries"] for reply in replies} == {1}


def test_a_fault_that_stays_fails_its_own_request_and_no_other():
    replies, tries = answered(PASSING | FINAL | {"fine": say("fine")})
    assert replies.pop("fine").text == "fine" and tries.pop("fine") == 1
    assert tries == dict.fromkeys(PASSING, 2) | dict.fromkeys(FINAL, 1)
    for name, reply in replies.items():
        assert reply.text == "" and reply.error and reply.out_of_context is None
        retries = int(name in PASSING)
        assert reply.usage == {"requests": 1 + retries, "retries": retries, "failed_requests": 1}


def drip(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def test_a_server_that_stalls_or_drips_bytes_costs_its_time_out_and_no_more():
    with chat_server() as server:
        server.script = lambda prompt, tries: {"stall": server.stall, "drip": drip, "fine": say("fine")}[prompt]
        *stalled, fine = ask(server, "stall", "drip", "fine", timeout=1.0, max_retries=1)
    assert fine.text == "fine" and all(reply.error and reply.usage["retries"] == 1 for reply in stalled)


def test_a_redirect_is_not_followed():
    with chat_server() as other:
        away = fail(307, Location=f"{other.url.replace('//', '//user:word@')}/chat/completions?key=1")
        replies, tries = answered({"a": away})
        moved = fail(302, Location=f"{other.url}/models")
        with chat_server(models=moved) as server, pytest.raises(ConfigError, match=r"actor\.base_url"):
            create_backend(config(server.url, model="m"))
        assert other.bodies == other.keys == [] and tries == {"a": 1}
    assert f"127.0.0.1:{other.server_port}" in replies["a"].error
    assert "word" not in replies["a"].error and "key=1" not in replies["a"].error


# Credentials


def test_credentials_are_sent_and_never_told(monkeypatch, caplog, capsys):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)

    def refuse(handler):
        quoted = f"{'x' * 270} {KEY[:8]}****cdef {KEY} {handler.headers['Authorization']}"
        handler.answer(403, json.dumps({"error": {"message": quoted}}), {})

    with chat_server(lambda prompt, tries: refuse) as server:
        urls = {
            server.url: f"Bearer {KEY}",
            server.url.replace("//", "//user:super%20secret@"): "Basic dXNlcjpzdXBlciBzZWNyZXQ=",
        }
        shown = ""
        for url, key in urls.items():
            server.keys.clear()
            backend = create_backend(config(url, openai={"api_key_env": "MY_KEY"} if "user" not in url else {}))
            (reply,) = backend.generate([request("a")], Sampling())
            backend.close()
            assert set(server.keys) == {key}
            shown += repr(backend) + repr(backend.settings) + backend.title + reply.error
    shown += caplog.text + "".join(capsys.readouterr())
    assert not any(secret in shown for secret in (KEY, KEY[:8] + "*", "secret", "dXNlc"))


@pytest.mark.parametrize(
    ("key", "models"),
    [
        (KEY, fail(401, f"bad key {KEY}")),
        *((key, None) for key in ("qx7-secret\nZZTOP", "qx7-secret ZZTOP", "qx7-secr\xe9t", "qx7-secret\x7f")),
    ],
)
def test_a_bad_key_is_refused_at_once_and_not_told(key, models, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with chat_server(models=models) as server:
        with pytest.raises(ConfigError, match="'OPENAI_API_KEY'") as caught:
            create_backend(config(server.url))
        assert server.bodies == [] and len(server.keys) == (models is not None)
    assert not any(part in str(caught.value) for part in ("qx7", KEY, "ZZTOP")) and caught.value.__cause__ is None


def test_openai_needs_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="'OPENAI_API_KEY'"):
        create_backend(config(None, model="m"))


# The configuration


def test_a_server_that_cannot_be_reached_is_an_error_at_once(monkeypatch):
    with chat_server() as server:
        url = server.url
    monkeypatch.setenv("ALL_PROXY", "")
    with pytest.raises(ConfigError, match=r"actor\.base_url") as caught:
        create_backend(config(url.replace("//", "//u:supersecret@"), model="m"))
    monkeypatch.setenv("ALL_PROXY", "gopher://me:supersecret@proxy:1")
    with pytest.raises(ConfigError, match=r"http://gpu7/v1") as refused:
        create_backend(config("http://gpu7/v1", model="m"))
    assert "supersecret" not in f"{caught.value} {refused.value}"


@pytest.mark.parametrize(
    ("models", "named", "found"),
    [
        *((models, "m", "m") for models in (fail(404), *map(raw, ("not json", "[]", '{"data": [{"name": 3}]}')))),
        ({"tiny": {}}, None, "tiny"),
        ({"one": {}, "two": {}}, None, "actor.model"),
        ({"one": {}, "two": {}}, "three", "actor.openai.check_model"),
    ],
)
def test_the_models_that_a_server_lists_settle_the_model(models, named, found):
    with chat_server(models=models) as server:
        given = config(server.url, model=named)
        if not found.startswith("actor"):
            assert create_backend(given).model == found
            return
        with pytest.raises(ConfigError, match=found):
            create_backend(given)


def test_a_context_longer_than_the_models_is_an_error():
    with chat_server(models={"tiny": {"max_model_len": 2048}}) as server:
        rollout = {"actor_rollout_ref": {"rollout": {"max_model_len": 3600}}}
        with pytest.raises(ConfigError, match=r"max_model_len"):
            create_backend(config(server.url) | rollout)
        rollout["actor_rollout_ref"]["rollout"]["max_model_len"] = 2048
        create_backend(config(server.url) | rollout)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("actor.base_url", url)
            for url in (
                *("localhost:8000", "http://localhost:99999/v1", "http://localhost:abc/v1", "http://localhost:0/v1"),
                *("http://[::1/v1", "http://lo\ncal/v1", "http://u:secret@h:p/v1"),
            )
        ),
        ("actor.openai.api_key", "secret"),
        ("actor.openai.request.api_key", "secret"),
        ("actor.openai.request.n", 5),
        ("actor.openai.request.stream", True),
        ("actor.openai.request.messages", []),
        ("actor.openai.request.model", "other"),
    ],
)
def test_bad_settings_name_their_key(key, value):
    given = config("http://127.0.0.1:1/v1")
    *path, last = key.split(".")
    section = given
    for name in path:
        section = section.setdefault(name, {})
    section[last] = value
    with pytest.raises(ConfigError, match=key) as caught:
        create_backend(given)
    assert "secret" not in str(caught.value)
