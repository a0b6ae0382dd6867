"""The API backend against a real HTTP server on localhost: what it asks, what it makes of answers, what of faults."""

import asyncio
import json
import logging
import threading
from concurrent.futures import CancelledError

import pytest
from PIL import Image

from ragen.errors import ConfigError
from ragen.llm_agent.backends import Reply, Request, Sampling, create_backend
from ragen.llm_agent.backends.openai_settings import Access, ApiSettings, is_local
from ragen.llm_agent.rollout.actor import in_vocabulary
from ragen.output import shown_address
from support.chat_server import chat_server, cut, cut_midway, fail, raw, say
from support.later import openai

KEY = "sk-test-0123456789abcdef"
PLAIN = "<think>ok</think><answer>1</answer>"


def request(prompt, env_id=0):
    return Request(env_id, 0, "T", [{"role": "system", "content": "s"}, {"role": "user", "content": prompt}])


class Pauses(list):
    """Remembers how long it was to wait, and does not."""

    async def __call__(self, seconds):
        self.append(seconds)
        await asyncio.sleep(0)


def ask(server, *prompts, sampling=None, key=None, pause=None, **settings):
    """The replies to prompts, one request each."""
    settings = ApiSettings("tiny", server.url, **{"timeout": 20.0, "max_retries": 2, **settings})
    backend = openai.OpenAIBackend(settings, Access(key), pause=pause if pause is not None else Pauses())
    try:
        return backend.generate([request(prompt, i) for i, prompt in enumerate(prompts)], sampling or Sampling())
    finally:
        backend.close()


def config(url, **actor):
    return {"actor": {"backend": "openai", "base_url": url, **actor}}


# What is asked and answered


def test_replies_come_in_the_order_of_the_requests_however_the_server_takes_them():
    with chat_server(lambda prompt, tries: say(f"to {prompt}")) as server:
        replies = ask(server, *map(str, range(20)), max_concurrency=5)
    assert [reply.text for reply in replies] == [f"to {number}" for number in range(20)]
    assert all(reply.error is None and reply.token_ids is None for reply in replies)


def test_a_reply_that_was_cut_off_is_told_from_one_that_came_to_its_end():
    with chat_server(lambda prompt, tries: tokens_told(finish_reason=prompt)) as server:
        assert [reply.cut_off for reply in ask(server, "stop", "length")] == [False, True]


def tokens_told(prompt_ids=None, usage=None, **choice):
    """A completion as vLLM writes it where it is asked for tokens."""
    message = {"role": "assistant", "content": "ab"}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "tiny", "usage": usage}
    body |= {"choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}]}
    return raw(json.dumps(body | ({} if prompt_ids is None else {"prompt_token_ids": prompt_ids})))


def steps(*log_probs):
    return {"content": [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in log_probs]}


@pytest.mark.parametrize(
    ("prompt_ids", "choice", "found"),
    [
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-0.5, -1)}, ([5, 6], [-0.5, -1.0], [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-0.5)}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6]}, ([5, 6], None, [1, 2])),
        (None, {"token_ids": [5, 6], "logprobs": steps(-0.5, -1)}, (None, None, None)),
        ([1, 2], {"logprobs": steps(-0.5, -1)}, (None, None, None)),
        ("12", {"token_ids": ["5"]}, (None, None, None)),
        ([1, 2], {"token_ids": [5, 2**40]}, (None, None, None)),
        ([1, 2], {"token_ids": [5, -6]}, (None, None, None)),
        ([1, 2], {"token_ids": [True, False]}, (None, None, None)),
        ([1, -2], {"token_ids": [5, 6]}, (None, None, None)),
        ([1, 2], {"token_ids": []}, (None, None, None)),
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(None, None)}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-1, float("nan"))}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-1, float("-inf"))}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps(-1, 9)}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": steps("-1", True)}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": {"content": "ab"}}, ([5, 6], None, [1, 2])),
        ([1, 2], {"token_ids": [5, 6], "logprobs": {"content": [None, 1]}}, ([5, 6], None, [1, 2])),
    ],
)
def test_tokens_are_taken_where_a_server_tells_those_of_prompt_and_reply(prompt_ids, choice, found):
    with chat_server(lambda prompt, tries: tokens_told(prompt_ids, **choice)) as server:
        (reply,) = ask(server, "a")
    assert (reply.text, reply.error) == ("ab", None)
    assert (reply.token_ids, reply.log_probs, reply.prompt_ids) == found


def test_tokens_that_the_tokenizer_does_not_have_are_not_taken():
    known, beyond = Reply("a", [5], [-1.0], [1, 9]), Reply("a", [5], [-1.0], [1, 10])
    assert in_vocabulary(known, 10) is known
    assert in_vocabulary(beyond, 10) == in_vocabulary(Reply("a", [10], None, [1]), 10) == Reply("a")


def test_no_requests_are_no_work():
    with chat_server() as server:
        assert ask(server) == []
        assert server.bodies == []


def test_a_request_has_the_model_the_chat_and_the_sampling():
    with chat_server() as server:
        ask(server, "hello", sampling=Sampling(temperature=0.5, top_p=0.9, top_k=40, max_tokens=77))
    assert server.bodies == [
        {
            "model": "tiny",
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}],
            "max_tokens": 77,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
        }
    ]


def test_greedy_is_temperature_0_and_nothing_else():
    with chat_server() as server:
        ask(server, "hello", sampling=Sampling(do_sample=False, temperature=0.7, top_p=0.9, top_k=5))
    assert {name: server.bodies[0].get(name) for name in ("temperature", "top_p", "top_k")} == {
        "temperature": 0.0,
        "top_p": None,
        "top_k": None,
    }


def test_fields_can_be_added_replaced_and_left_out():
    fields = {"max_tokens": None, "max_completion_tokens": 9, "temperature": 0.1, "chat_template_kwargs": {"a": True}}
    with chat_server() as server:
        ask(server, "hello", request=fields)
    body = server.bodies[0]
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["temperature"], body["chat_template_kwargs"]) == (9, 0.1, {"a": True})


def test_images_go_as_data_urls():
    image = Image.new("RGB", (2, 2), "red")
    content = [{"type": "text", "text": "see"}, {"type": "image", "image": image}]
    (message,) = openai.api_messages([{"role": "user", "content": content}])
    assert message["content"][0] == {"type": "text", "text": "see"}
    assert message["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    json.dumps(message)


def test_a_reasoning_models_thoughts_are_put_before_its_answer():
    answers = {
        "apart": say("<answer>Up</answer>", reasoning_content=" go up "),
        "within": say("<think>up</think><answer>Up</answer>", reasoning_content="again"),
        "refused": say(None, refusal="I will not"),
        "empty": say(None),
    }
    with chat_server(lambda prompt, tries: answers[prompt]) as server:
        replies = ask(server, *answers)
    assert [reply.text for reply in replies] == [
        "<think>go up</think><answer>Up</answer>",
        "<think>up</think><answer>Up</answer>",
        "I will not",
        "",
    ]


def test_half_a_surrogate_pair_is_replaced_in_replies_and_in_errors():
    answers = {
        "said": say("a\ud83d b"),
        "thought": say("b", reasoning_content="\udc00"),
        "failed": fail(400, "c\ud83d"),
    }
    with chat_server(lambda prompt, tries: answers[prompt]) as server:
        said, thought, failed = ask(server, *answers)
    assert (said.text, thought.text) == ("a\ufffd b", "<think>\ufffd</think>b")
    assert failed.error == "HTTP 400: c\ufffd"


def test_tokens_retries_and_dollars_are_counted():
    with chat_server(lambda prompt, tries: say("x", 1000, 10) if tries else fail(503)) as server:
        (reply,) = ask(server, "a", price={"prompt": 2.0, "completion": 10.0})
    assert reply.usage == {
        "requests": 2,
        "retries": 1,
        "prompt_tokens": 1000,
        "completion_tokens": 10,
        "cost": pytest.approx(0.0021),
    }


@pytest.mark.parametrize(
    "count", [float("nan"), float("inf"), -1, "7", None, True, [], 10**400], ids=lambda count: str(count)[:9]
)
def test_what_is_no_count_is_not_counted(count):
    with chat_server(
        lambda prompt, tries: tokens_told(usage={"prompt_tokens": count, "completion_tokens": 3})
    ) as server:
        (reply,) = ask(server, "a", price={"prompt": 1.0, "completion": 1.0})
    assert reply.usage == {"requests": 1, "retries": 0, "completion_tokens": 3, "cost": pytest.approx(3e-6)}


@pytest.mark.parametrize("usage", [[1, 2], "many", 3])
def test_a_usage_that_is_none_is_not_counted(usage):
    with chat_server(lambda prompt, tries: tokens_told(usage=usage)) as server:
        (reply,) = ask(server, "a")
    assert (reply.text, reply.usage) == ("ab", {"requests": 1, "retries": 0})


def test_no_more_requests_than_allowed_are_under_way():
    together = threading.Barrier(3)  # broken, and so an error for the request, unless three come at a time

    def script(prompt, tries):
        together.wait(20)
        return say("x")

    with chat_server(script) as server:
        replies = ask(server, *map(str, range(9)), max_concurrency=3)
        assert server.most_active == 3
    assert [reply.error for reply in replies] == [None] * 9


def test_calls_from_several_threads_share_the_slots():
    with chat_server() as server:
        backend = openai.OpenAIBackend(ApiSettings("tiny", server.url, max_concurrency=2))
        replies = []
        threads = [
            threading.Thread(target=lambda n=n: replies.extend(backend.generate([request(str(n))] * 3, Sampling())))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        backend.close()
        assert server.most_active <= 2
    assert [reply.text for reply in replies] == [PLAIN] * 12


# Faults

PASSING = {
    "429": fail(429, "slow down"),
    "500": fail(500, "oops"),
    "502": fail(502),
    "408": fail(408),
    "cut connection": cut,
    "cut in the middle": cut_midway,
    "malformed JSON": raw('{"id": "c1", "choices": ['),
    "no JSON at all": raw("<html>proxy</html>", "text/html"),
    "no choices": raw('{"id": "c1", "choices": []}'),
    "choices of the wrong type": raw('{"choices": "none"}'),
    "null": raw("null"),
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_passing_fault_is_tried_again(fault):
    with chat_server(lambda prompt, tries: say("fine") if tries == 2 else PASSING[fault]) as server:
        (reply,) = ask(server, "a")
    assert (reply.text, reply.error, reply.usage["retries"]) == ("fine", None, 2)


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_stays_fails_its_own_request_and_no_other(fault):
    with chat_server(lambda prompt, tries: PASSING[fault] if prompt == "b" else say("fine")) as server:
        replies = ask(server, "a", "b", "c", max_concurrency=1)
        assert server.tries['"b"'] == 3
    assert [reply.text for reply in replies] == ["fine", "", "fine"]
    assert [reply.error is None for reply in replies] == [True, False, True]
    assert replies[1].error.endswith("(3 tries)")
    assert replies[1].usage == {"requests": 3, "retries": 2, "failed_requests": 1}


def test_a_server_that_stalls_costs_its_time_out_and_no_more():
    with chat_server() as server:
        server.script = lambda prompt, tries: server.stall if prompt == "b" else say("fine")
        replies = ask(server, "a", "b", timeout=1, max_retries=1)
    assert replies[0].text == "fine"
    assert replies[1].error == "the server did not answer in time (2 tries)"


def test_a_server_that_drips_bytes_is_a_stall_too():
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not handler.server.released.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    with chat_server(lambda prompt, tries: drip) as server:
        (reply,) = ask(server, "a", timeout=0.3, max_retries=0)
    assert reply.error == "the server did not answer in time"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_not_work_the_next_time_is_not_tried_again(status):
    with chat_server(lambda prompt, tries: fail(status, "bad")) as server:
        (reply,) = ask(server, "a")
        assert len(server.bodies) == 1
    assert reply.error == f"HTTP {status}: bad"


def test_an_empty_account_is_not_asked_again():
    with chat_server(lambda prompt, tries: fail(429, "pay first", code="insufficient_quota")) as server:
        (reply,) = ask(server, "a")
        assert len(server.bodies) == 1
    assert "pay first" in reply.error


def test_waits_double_and_follow_the_servers_wish():
    pauses = Pauses()
    with chat_server(lambda prompt, tries: say("x") if tries == 4 else fail(500)) as server:
        ask(server, "a", max_retries=4, backoff=2.0, pause=pauses)
    assert [low <= wait <= 2 * low for low, wait in zip((1, 2, 4, 8), pauses, strict=True)] == [True] * 4
    pauses = Pauses()
    answers = [fail(429, Retry_After="17"), fail(429, Retry_After="4000"), fail(429, Retry_After="soon"), say("x")]
    with chat_server(lambda prompt, tries: answers[tries]) as server:
        ask(server, "a", max_retries=3, backoff=0.0, pause=pauses)
    assert pauses == [17.0, 60.0, 0.0]


def test_a_wait_may_be_until_a_date(monkeypatch):
    monkeypatch.setattr("ragen.llm_agent.backends.chat_completions.time.time", lambda: 784111777.0 - 17)
    dates = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 -0000", "Sun, 06 Nov 2094 08:49:37 GMT")
    answers = [*dates, "Sun, 06 Nov 1904 08:49:37 GMT", "Sun, 66 Nov 1994 08:49:37 GMT"]
    script = [*(fail(429, Retry_After=date) for date in answers), say("x")]
    pauses = Pauses()
    with chat_server(lambda prompt, tries: script[tries]) as server:
        ask(server, "a", max_retries=5, backoff=0.0, pause=pauses)
    assert pauses == [17.0, 17.0, 60.0, 0.0, 0.0]


def test_closing_ends_the_thread_and_may_be_done_twice():
    with chat_server() as server:
        backend = openai.OpenAIBackend(ApiSettings("tiny", server.url))
        backend.generate([request("a")], Sampling())
        assert any(thread.name == "ragen-openai" for thread in threading.enumerate())
        backend.close()
        backend.close()
        assert not any(thread.name == "ragen-openai" for thread in threading.enumerate())


# The key


def test_the_key_is_sent_and_never_told(monkeypatch, caplog, capsys):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with chat_server(lambda prompt, tries: fail(401, f"Incorrect API key {KEY}, or {KEY[:8]}****cdef")) as server:
        backend = create_backend(config(server.url, openai={"api_key_env": "MY_KEY"}))
        (reply,) = backend.generate([request("a")], Sampling())
        backend.close()
        assert set(server.keys) == {f"Bearer {KEY}"}
    told = "".join([repr(backend), repr(backend.settings), reply.error, caplog.text, *capsys.readouterr()])
    assert "HTTP 401: Incorrect API key ***, or ***" in told
    assert KEY not in told and KEY[:8] not in told


def test_a_refused_key_is_found_out_at_once_and_not_told(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with (
        chat_server(models=fail(401, f"bad key {KEY}")) as server,
        pytest.raises(ConfigError, match="refuses the key of environment variable 'OPENAI_API_KEY'") as caught,
    ):
        create_backend(config(server.url))
    assert KEY not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize("url", [None, "https://api.example.com/v1", "https://8.8.8.8/v1"])
def test_a_missing_key_is_an_error_before_anything_is_sent(url, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match="environment variable 'OPENAI_API_KEY' is not set; set it"):
        create_backend(config(url, model="m"))


@pytest.mark.parametrize(
    "key", ["qx7-supersecret\nZZTOP", "qx7-supersecret ZZTOP", "qx7-supersecr\xe9t", "qx7-supersecret\x7f"]
)
def test_what_cannot_be_a_key_is_an_error_before_anything_is_sent_and_not_told(key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with chat_server() as server:
        with pytest.raises(
            ConfigError, match="'OPENAI_API_KEY' does not contain a key: there is a line break"
        ) as caught:
            create_backend(config(server.url))
        assert server.keys == []
    assert "qx7" not in str(caught.value) and "ZZTOP" not in str(caught.value)


def test_a_password_in_the_address_is_sent_and_never_told(monkeypatch, caplog, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    caplog.set_level(logging.DEBUG)

    def refuse(handler):
        handler.answer(403, json.dumps({"error": {"message": f"no {handler.headers['Authorization']} of s p"}}), {})

    with chat_server(lambda prompt, tries: refuse) as server:
        backend = create_backend(config(server.url.replace("//", "//user:super%20secret@")))
        (reply,) = backend.generate([request("a")], Sampling())
        backend.close()
        assert set(server.keys) == {"Basic dXNlcjpzdXBlciBzZWNyZXQ="}
    told = "".join([repr(backend), repr(backend.settings), reply.error, caplog.text, *capsys.readouterr()])
    assert reply.error == "HTTP 403: no Basic *** of s p"
    assert "secret" not in told and "dXNlc" not in told


def test_a_password_in_the_address_of_no_server_is_not_told():
    with chat_server() as server:
        url = server.url
    with pytest.raises(ConfigError, match=f"'actor.base_url' is '{url}', but no server answers there") as caught:
        create_backend(config(url.replace("//", "//u:supersecret@"), model="m"))
    assert "supersecret" not in str(caught.value)


def test_a_secret_is_taken_out_also_where_it_is_quoted_or_a_message_is_cut():
    assert Access("x").redacted("Expecting value") == "Expecting value"
    access = Access("a\\b'c", "me:pass\tword")
    assert access.redacted(f"{access.key!r} {access.user!r} me") == "\"***\" '***' me"
    with chat_server(lambda prompt, tries: fail(400, "x" * 295 + "qx7-supersecret")) as server:
        (reply,) = ask(server, "a", key="qx7-supersecret")
    assert "qx7" not in reply.error


def test_an_address_is_shown_without_what_stands_before_its_host():
    shown = {
        "http://localhost:1/v1": "http://localhost:1/v1",
        "http://u:p@localhost:1/v1": "http://***@localhost:1/v1",
        "http://u:p@ss/w@[::1/v1": "http://***@[::1/v1",
        "u:p@here": "***@here",
    }
    assert {url: shown_address(url) for url in shown} == shown


def test_servers_close_by_may_want_no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    near = (
        "http://localhost:8000/v1",
        "http://127.0.0.1/v1",
        "http://[::1]:80/v1",
        "http://10.0.0.3/v1",
        "http://gpu7/v1",
    )
    assert all(map(is_local, near))
    assert not any(map(is_local, ("https://api.openai.com/v1", "http://8.8.8.8/v1")))


# The configuration


def test_an_unreachable_server_is_found_out_at_once():
    with chat_server() as server:
        url = server.url
    with pytest.raises(ConfigError, match=rf"'actor\.base_url' is '{url}', but no server answers there: .+\.$"):
        create_backend(config(url, model="m"))


def test_a_proxy_that_is_none_is_found_out_at_once(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "gopher://me:secret@proxy:1")
    with pytest.raises(ConfigError, match=r"no client .* server at http://gpu7/v1: .*proxy") as caught:
        create_backend(config("http://gpu7/v1", model="m"))
    assert "secret" not in str(caught.value)


def test_a_server_that_does_not_list_its_models_is_taken_as_it_is():
    for models in (fail(404), raw("not json"), raw("[]"), raw('{"data": [{"name": 3}]}')):
        with chat_server(models=models) as server:
            backend = create_backend(config(server.url, model="m"))
            assert backend.settings.model == "m"
            backend.close()


def test_the_only_model_of_a_server_need_not_be_named():
    with chat_server() as server:
        assert create_backend(config(server.url)).settings.model == "tiny"


def test_of_several_models_one_must_be_named():
    with (
        chat_server(models={"one": {}, "two": {}}) as server,
        pytest.raises(ConfigError, match=r"'actor\.model' is missing; .* which has: one, two\."),
    ):
        create_backend(config(server.url))


def test_a_context_longer_than_the_models_is_an_error():
    with chat_server(models={"tiny": {"max_model_len": 2048}}) as server:
        rollout = {"actor_rollout_ref": {"rollout": {"max_model_len": 3600}}}
        with pytest.raises(ConfigError, match=r"max_model_len' is 3600, and the context of model 'tiny' ends at 2048"):
            create_backend(config(server.url) | rollout)
        rollout["actor_rollout_ref"]["rollout"]["max_model_len"] = 2048
        create_backend(config(server.url) | rollout)


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        ({"base_url": "localhost:8000"}, r"'actor\.base_url' is 'localhost:8000'; expected an address"),
        ({"base_url": "http://localhost:99999/v1"}, r"'actor\.base_url' is 'http://localhost:99999/v1'; expected an"),
        ({"base_url": "http://localhost:abc/v1"}, r"'actor\.base_url' is 'http://localhost:abc/v1'; expected an"),
        ({"base_url": "http://localhost:0/v1"}, r"'actor\.base_url' is 'http://localhost:0/v1'; expected an"),
        ({"base_url": "http://[::1/v1"}, r"'actor\.base_url' is 'http://\[::1/v1'; expected an"),
        ({"base_url": "http://lo\ncal/v1"}, r"'actor\.base_url' is 'http://lo\\ncal/v1'; expected an"),
        ({"base_url": "http://u:secret@h:p/v1"}, r"'actor\.base_url' is 'http://\*\*\*@h:p/v1'; expected an"),
        ({"openai": {"max_concurrency": 0}}, r"'actor\.openai\.max_concurrency' is 0; expected at least 1"),
        ({"openai": {"timeout": 0}}, r"'actor\.openai\.timeout' is 0.0; expected at least"),
        ({"openai": {"max_retries": -1}}, r"'actor\.openai\.max_retries' is -1"),
        ({"openai": {"price": {"input": 1}}}, r"'actor\.openai\.price' has input; expected prompt and completion"),
        ({"openai": {"price": {"prompt": -1}}}, r"'actor\.openai\.price\.prompt' is -1.0; expected at least 0"),
        ({"openai": {"timeout": "long"}}, r"'actor\.openai\.timeout' is 'long'; expected a number"),
    ],
)
def test_bad_settings_name_their_key(actor, said):
    with pytest.raises(ConfigError, match=said):
        create_backend(config("http://127.0.0.1:1/v1") | {"actor": config("http://127.0.0.1:1/v1")["actor"] | actor})


def test_nothing_is_sent_from_the_moment_that_a_run_stops():
    stops = threading.Event()

    class Stopping(openai.OpenAIBackend):
        """Says when ``settle`` has begun, which is before the loop that sends hears of it."""

        @property
        def grace(self):
            stops.set()
            return 5.0

        @grace.setter
        def grace(self, seconds):
            pass

    async def pause(seconds):  # holds the loop, so that what settle asks of it is behind what this task does next
        threading.Thread(target=backend.settle, daemon=True).start()
        assert stops.wait(60)

    with chat_server(lambda prompt, tries: say(PLAIN) if tries else fail(503)) as server:
        backend = Stopping(ApiSettings("tiny", server.url, max_concurrency=1), pause=pause)
        futures = [backend.submit(request(str(number), number), Sampling()) for number in range(3)]
        try:
            for future in futures:
                with pytest.raises(CancelledError):
                    future.result(60)
        finally:
            backend.close()
    assert len(server.bodies) == 1
