"""The journal of replies: what is in it is found again, what was cut short is passed over, counts add up."""

import pytest

from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.journal import Failure, ReplyJournal, reply_key

REQUEST = Request(3, 1, "T", [{"role": "user", "content": "hello"}])
REPLY = Reply(
    "a\n é\N{REPLACEMENT CHARACTER}",
    [1, 2],
    [-0.5, -1.0],
    [7],
    True,
    "length",
    usage={"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25},
)


def filled(path):
    with ReplyJournal(path).open() as journal:
        for key in "kloum":
            journal.sent(key, REQUEST)
        journal.answered("k", REQUEST, REPLY, 1, 0.5)
        journal.failed("l", REQUEST, Failure("HTTP 500", retries=2))
        journal.failed("o", REQUEST, Failure("HTTP 400", is_out_of_context=True))
        journal.failed("u", REQUEST, Failure("it took too long", is_unconfirmed=True))
    return path


def test_a_reply_is_found_again_as_it_was(tmp_path):
    with ReplyJournal(filled(tmp_path / "j")).open() as journal:
        assert journal.find("k") == REPLY and journal.replies == 1
        assert [journal.find(key) for key in "loum"] == [None] * 4


def test_usage_is_counted_over_all_runs(tmp_path):
    path = filled(tmp_path / "j")
    with ReplyJournal(path).open() as journal:
        journal.sent("m", REQUEST)
        usage = journal.usage
    counts = {"requests": 9, "retries": 4, "failed_requests": 2, "unconfirmed": 3}
    assert usage == counts | {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.25}
    with ReplyJournal(path).open() as journal:
        assert journal.usage == usage


@pytest.mark.parametrize("cut", range(1, 300, 37))
def test_a_line_that_was_cut_short_is_passed_over_and_not_built_upon(cut, tmp_path):
    path = filled(tmp_path / "j")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    lines = whole[:-cut].count(b"\n")
    with ReplyJournal(path).open() as journal:
        journal.answered("n", REQUEST, REPLY, 0, 0.5)
    with ReplyJournal(path).open() as journal:
        assert journal.find("n") == REPLY
        assert (journal.find("k") == REPLY) == (lines >= 6)


@pytest.mark.parametrize(
    "line", ["[1]", "{}", '{"sent": 1}', '{"answered": "k"}', "null", "\x00\x00", '{"answered": []}']
)
def test_lines_of_something_else_are_passed_over(line, tmp_path):
    path = filled(tmp_path / "j")
    path.write_text(line + "\n" + path.read_text())
    with ReplyJournal(path).open() as journal:
        assert journal.find("k") == REPLY


def test_a_key_is_of_who_asks_and_of_all_that_is_sent():
    one = reply_key(REQUEST, "m", "http://a", {"temperature": 0}, [1])
    others = [
        reply_key(Request(4, 1, "T", []), "m", "http://a", {"temperature": 0}, [1]),
        reply_key(Request(3, 2, "T", []), "m", "http://a", {"temperature": 0}, [1]),
        reply_key(REQUEST, "n", "http://a", {"temperature": 0}, [1]),
        reply_key(REQUEST, "m", "http://b", {"temperature": 0}, [1]),
        reply_key(REQUEST, "m", "http://a", {"temperature": 1}, [1]),
        reply_key(REQUEST, "m", "http://a", {"temperature": 0}, [2]),
    ]
    assert len({one, *others}) == 7 and one == reply_key(REQUEST, "m", "http://a", {"temperature": 0}, [1])
