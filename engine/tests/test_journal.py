"""The journal: what is written is read by the next process, whatever ended this one."""

import json
import math
import multiprocessing

import numpy as np
import pytest

from envlanes.errors import ConfigError
from envlanes.ragen.journal import JournalFile, NotPlain, StorageError, packed

EVENTS = [{"env": 0, "turn": 0, "gave": "a"}, {"env": 0, "turn": 1, "gave": "b"}]


def written(path, events=EVENTS):
    with JournalFile(path, {"mode": "train"}) as journal:
        journal.write(events)
    return path


def read(path, about=("mode", "train")):
    with JournalFile(path, dict([about])) as journal:
        return journal.events


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "\ud800 é"], "b": (1, ("x",)), 3: b"\0\xff", "$c": {1, 2}, "d": frozenset({(1,)})},
        np.float32(0.1),
        np.bool_(True),
        np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
        np.zeros((0, 2)),
        -math.inf,
    ],
    ids=repr,
)
def test_a_value_comes_back_with_its_types(tmp_path, value):
    (event,) = read(written(tmp_path / "j", [{"gave": packed(value)}]))
    back = event["gave"]
    assert type(back) is type(value) and repr(back) == repr(value)


def test_equal_sets_have_one_form():
    assert list(set([8, 0])) != list(set([0, 8])) and packed(set([8, 0])) == packed(set([0, 8]))  # noqa: C405


@pytest.mark.parametrize("value", [object(), {"a": [print]}, np.array([object()]), 1j, type("Text", (str,), {})("a")])
def test_a_value_without_an_exact_form_is_refused(value):
    with pytest.raises(NotPlain):
        packed(value)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_line_is_dropped_and_written_over(tmp_path, cut):
    path = written(tmp_path / "j")
    path.write_bytes(path.read_bytes()[:-cut])
    kept = read(path)
    assert kept == EVENTS[: len(kept)] and len(kept) == (1 if cut <= len(json.dumps(EVENTS[1])) - 4 else 0)
    with JournalFile(path, {"mode": "train"}) as journal:
        journal.write(EVENTS[len(kept) :])
    assert read(path) == EVENTS


@pytest.mark.parametrize(
    "damage", [b"\0" * 512, b"{]\n", b'{"$code": "x"}\n', b'{"gave": {"$array": ["O", [1], ""]}}\n']
)
def test_what_follows_a_damaged_line_is_dropped(tmp_path, damage):
    path = written(tmp_path / "j")
    path.write_bytes(path.read_bytes() + damage + b'{"env": 1}\n')
    assert read(path) == EVENTS


def test_another_configuration_is_refused_and_nothing_is_lost(tmp_path):
    path = written(tmp_path / "j")
    with pytest.raises(ConfigError, match="mode"):
        read(path, ("mode", "val"))
    assert read(path) == EVENTS


@pytest.mark.parametrize("content", [b"some text\n", b"\x89PNG", b'{"a": 1}\n'])
def test_a_file_of_another_kind_is_refused_and_unchanged(tmp_path, content):
    path = tmp_path / "j"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read(path)
    assert path.read_bytes() == content


def test_one_writer_at_a_time(tmp_path):
    with JournalFile(tmp_path / "j") as journal:
        for _ in range(2):
            with pytest.raises(ConfigError):
                JournalFile(tmp_path / "j")
            journal.replace(EVENTS)  # another file, under the same name
    assert JournalFile(tmp_path / "j").events == EVENTS


def test_a_replaced_journal_has_the_new_events_alone(tmp_path):
    with JournalFile(written(tmp_path / "j"), {"mode": "train"}) as journal:
        journal.replace(EVENTS[:1])
        journal.write([{"env": 2}])
    assert read(tmp_path / "j") == [EVENTS[0], {"env": 2}]


def _fill(path, results):
    import resource

    with JournalFile(path, {"mode": "train"}) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # as a full disk: a write is cut short, then refused
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            journal.write([{"gave": "x" * 5000}])
        except StorageError:
            results.put("refused")
        journal.write([{"env": 2}])


def test_a_full_disk_keeps_whole_events(tmp_path):
    results = multiprocessing.get_context("fork").SimpleQueue()
    child = multiprocessing.get_context("fork").Process(target=_fill, args=(written(tmp_path / "j"), results))
    child.start()
    child.join()
    assert results.get() == "refused" and read(tmp_path / "j") == [*EVENTS, {"env": 2}]
