"""The journal of replies: what was answered is found again, and usage adds up over all runs."""

from dataclasses import replace

import pytest
from PIL import Image

from ragen.llm_agent.backends.base import Reply, Request, Sampling
from ragen.llm_agent.backends.reply_journal import ReplyJournal, reply_key

REQUEST = Request(3, 1, "T", [{"role": "user", "content": "hello"}])
USAGE = {"requests": 2, "retries": 1, "prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25}
REPLY = Reply("a\n é\N{REPLACEMENT CHARACTER}", [1, 2], [-0.5, -1.0], [7], True, "length", usage=USAGE)
FAILED = Reply("", error="HTTP 500: no", usage={"requests": 3, "retries": 2, "failed_requests": 1})
FULL = Reply("", out_of_context="HTTP 400: too long", usage={"requests": 1, "retries": 0})
WHOLE = {"requests": 6, "retries": 3, "failed_requests": 1, "prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25}


@pytest.fixture
def path(tmp_path):
    with ReplyJournal(tmp_path / "j") as journal:
        journal.add([("k", REPLY)], position=4)
        journal.add([("l", FAILED), ("o", FULL)])
    return tmp_path / "j"


def test_a_reply_is_found_again_as_it_was(path):
    with ReplyJournal(path) as journal:
        assert journal.find("k") == (REPLY, 4) and journal.replies == 1
        assert [journal.find(key) for key in "lom"] == [None] * 3
        assert journal.usage == WHOLE


def test_usage_is_kept_when_the_replies_were_taken_up(path):
    with ReplyJournal(path) as journal:
        journal.forget()
        journal.add([("n", FULL)])
    with ReplyJournal(path) as journal:
        assert journal.find("k") is None and journal.usage == WHOLE | {"requests": 7}


def test_a_key_is_of_who_asks_and_of_all_that_decides_the_reply():
    def picture(shade):
        content = [{"type": "image", "image": Image.new("RGB", (2, 3), shade)}]
        return replace(REQUEST, messages=[{"role": "user", "content": content}])

    asked = [
        (REQUEST, Sampling()),
        (replace(REQUEST, env_id=4), Sampling()),
        (replace(REQUEST, turn=2), Sampling()),
        (replace(REQUEST, messages=[]), Sampling()),
        (replace(REQUEST, prompt_ids=[1, 2]), Sampling()),
        (replace(REQUEST, prompt_ids=[1], images=[Image.new("RGB", (2, 3))]), Sampling()),
        (replace(REQUEST, prompt_ids=[1]), Sampling()),
        (REQUEST, Sampling(temperature=0.5)),
        (REQUEST, Sampling(), 1),
        (picture("red"), Sampling()),
        (picture("blue"), Sampling()),
    ]
    assert len({reply_key(*each) for each in asked}) == len(asked)
    assert [reply_key(*each) for each in asked] == [reply_key(*each) for each in asked]
