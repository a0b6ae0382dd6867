"""The journal of replies: what is in it is found again, what was cut short is passed over, counts add up."""

import errno
import json
import os
from dataclasses import replace

import pytest

from ragen.errors import ConfigError, StorageError
from ragen.llm_agent.backends import journal as journal_module
from ragen.llm_agent.backends.base import Reply, Request
from ragen.llm_agent.backends.journal import ReplyJournal, reply_key
from ragen.llm_agent.backends.openai_settings import ApiSettings

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
        journal.answered("k", REQUEST, journal.sent("k", REQUEST), REPLY, 0.5)
        journal.failed("l", REQUEST, journal.sent("l", REQUEST), "HTTP 500", is_given_up=True)
        journal.sent("m", REQUEST)
    return path


def test_a_reply_is_found_again_as_it_was(tmp_path):
    with ReplyJournal(filled(tmp_path / "j")).open() as journal:
        assert journal.find("k") == REPLY and journal.replies == 1
        assert journal.find("l") is None and journal.find("m") is None
        assert journal.sent("m", REQUEST) == 2


def test_what_was_sent_and_used_is_counted_over_all_runs(tmp_path):
    path = filled(tmp_path / "j")
    with ReplyJournal(path).open({"requests": 100}) as journal:  # too late: there is a journal
        journal.sent("m", REQUEST)
        usage = journal.usage
    counts = {
        "requests": 4,
        "retries": 1,
        "failed_requests": 1,
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cost": 0.25,
    }
    assert usage == counts | {"unconfirmed": 2}
    with ReplyJournal(path).open() as journal:
        assert journal.usage == usage


def test_replies_without_a_price_are_counted_and_priced_once_there_is_one(tmp_path):
    with ReplyJournal(tmp_path / "j").open({"prompt_tokens": 10, "completion_tokens": 0}) as journal:
        for key, usage in {"a": {"prompt_tokens": 5, "completion_tokens": 1}, "b": REPLY.usage, "c": {}}.items():
            journal.answered(key, REQUEST, journal.sent(key, REQUEST), replace(REPLY, usage=usage), 0.5)
        counts = {"prompt_tokens": 20, "completion_tokens": 3, "uncounted_replies": 1}
        sent = {"requests": 3, "retries": 0}
        assert journal.usage == {**sent, **counts, "cost": 0.25, "unpriced_replies": 1}
    cost = ApiSettings("M", price={"prompt": 1e6, "completion": 2e6}).cost
    with ReplyJournal(tmp_path / "j").open(cost=cost) as journal:
        assert journal.usage == {**sent, **counts, "cost": 10 + 7 + 0.25}
        assert [journal.find(key).usage.get("cost") for key in "abc"] == [7, 0.25, None]


def test_a_journal_goes_on_with_the_counts_from_before_there_was_one(tmp_path):
    with ReplyJournal(tmp_path / "j").open({"requests": 7, "cost": 0.5}) as journal:
        journal.sent("k", REQUEST)
    with ReplyJournal(tmp_path / "j").open({"requests": 99}) as journal:
        assert journal.usage == {"requests": 8, "retries": 0, "cost": 0.5, "unconfirmed": 1}


def test_the_servers_own_count_is_known_within_what_is_unconfirmed(tmp_path):
    with ReplyJournal(tmp_path / "j").open() as journal:
        journal.failed("k", REQUEST, journal.sent("k", REQUEST), "refused", is_given_up=False, has_arrived=False)
        journal.failed("k", REQUEST, journal.sent("k", REQUEST), "HTTP 500", is_given_up=False)
        journal.failed("k", REQUEST, journal.sent("k", REQUEST), "HTTP 500: no", is_given_up=False)
        journal.failed("k", REQUEST, journal.sent("k", REQUEST), "cut: x", is_given_up=False, has_arrived=None)
        journal.answered("k", REQUEST, journal.sent("k", REQUEST), REPLY, 0.5)
        journal.sent("l", REQUEST)
    with ReplyJournal(tmp_path / "j").open() as journal:
        counts = {name: journal.usage[name] for name in ("requests", "retries", "unconfirmed")}
        assert journal.faults == {"refused": 1, "HTTP 500": 2, "cut": 1}
    assert counts == {"requests": 5, "retries": 3, "unconfirmed": 2}


def test_a_first_request_after_refused_attempts_is_no_retry(tmp_path):
    with ReplyJournal(tmp_path / "j").open() as journal:
        for given_up in (False, True):
            sent = journal.sent("k", REQUEST)
            journal.failed("k", REQUEST, sent, "refused", is_given_up=given_up, has_arrived=False)
        assert journal.usage == {"requests": 0, "retries": 0, "failed_requests": 1}
    with ReplyJournal(tmp_path / "j").open() as journal:
        first = journal.sent("k", REQUEST)
        assert (journal.usage["requests"], journal.usage["retries"]) == (1, 0)
        journal.failed("k", REQUEST, first, "HTTP 500", is_given_up=False)
        journal.failed("k", REQUEST, journal.sent("k", REQUEST), "refused", is_given_up=False, has_arrived=False)
        journal.answered("k", REQUEST, journal.sent("k", REQUEST), REPLY, 0.5)
        assert (journal.usage["requests"], journal.usage["retries"]) == (2, 1)


class Disk:
    """A disk that is full from some moment on; what is deleted makes room."""

    def __init__(self, monkeypatch, folder):
        self.folder, self.write, self.room = folder, os.write, None
        monkeypatch.setattr(journal_module.os, "write", self)

    def fill(self):
        self.room = sum(path.stat().st_size for path in self.folder.iterdir())

    def __call__(self, file, data):
        used = sum(path.stat().st_size for path in self.folder.iterdir())
        if self.room is not None and used + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.write(file, data)


def test_on_a_full_disk_replies_under_way_are_kept_and_nothing_more_is_sent(tmp_path, monkeypatch):
    disk = Disk(monkeypatch, tmp_path)
    with ReplyJournal(tmp_path / "j").open() as journal:
        attempts = {key: journal.sent(key, REQUEST) for key in "abc"}
        disk.fill()
        for key, attempt in attempts.items():
            journal.answered(key, REQUEST, attempt, REPLY, 0.5)
        with pytest.raises(StorageError, match="cannot be written to: No space left on device"):
            journal.sent("d", REQUEST)
    disk.room = None
    with ReplyJournal(tmp_path / "j").open() as journal:
        assert [journal.find(key) for key in "abcd"] == [REPLY, REPLY, REPLY, None]
        assert journal.usage["requests"] == 3 and "unconfirmed" not in journal.usage


def test_nothing_but_the_journal_is_left_when_it_is_closed(tmp_path):
    filled(tmp_path / "j")
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


@pytest.mark.parametrize("cut", range(1, 200, 13))
def test_a_line_that_was_cut_short_is_passed_over_and_not_built_upon(cut, tmp_path):
    path = filled(tmp_path / "j")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    lines = whole[:-cut].count(b"\n")
    with ReplyJournal(path).open() as journal:
        journal.answered("n", REQUEST, 1, REPLY, 0.5)
    with ReplyJournal(path).open() as journal:
        assert journal.find("n") == REPLY
        assert (journal.find("k") == REPLY) == (lines >= 2)


@pytest.mark.parametrize(
    "line", ["[1]", "{}", '{"sent": 1}', '{"answered": "k"}', "null", "\x00\x00", '{"answered": []}']
)
def test_lines_of_something_else_are_passed_over(line, tmp_path):
    path = filled(tmp_path / "j")
    path.write_text(line + "\n" + path.read_text())
    with ReplyJournal(path).open() as journal:
        assert journal.find("k") == REPLY


def test_each_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    with ReplyJournal(tmp_path / "j").open() as journal:
        for count in range(1, 4):
            journal.answered(str(count), REQUEST, 1, REPLY, 0.5)
            assert len((tmp_path / "j").read_bytes().splitlines()) == count


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        ReplyJournal(tmp_path / "no" / "j").open()


def test_texts_can_be_dropped_and_counts_stay(tmp_path):
    path = filled(tmp_path / "j")
    with ReplyJournal(path).open() as journal:
        usage = journal.usage
        journal.drop_texts()
    assert "hello" not in path.read_text() and REPLY.text not in path.read_text()
    assert all(json.loads(line) for line in path.read_text().splitlines())
    with ReplyJournal(path).open() as journal:
        assert journal.find("k") is None and journal.usage == usage and journal.replies == 1


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
