"""Messages, digests and infos: what is taken apart is put together again as it was."""

from itertools import starmap
from pathlib import Path

import numpy as np

from envlanes.episode.outcome import Outcome
from envlanes.episode.pickled import Pickled
from envlanes.episode.values import detached, digest_of
from envlanes.gym.game import GymTurn
from envlanes.workers import codec
from envlanes.workers.orders import Play
from support.gym_envs import same

VALUES = [
    np.zeros(3, np.float32),
    np.zeros((), np.int8),
    np.eye(3)[:, ::2],
    np.float64(1),
    np.zeros(10_000),
    {"a": np.ones(2), "b": 1.0},
    (1, np.ones(2)),
    np.array(["a", None], object),
    np.str_("bc"),
    [None, True, "text"],
    GymTurn(np.int64(2), 1, 5, {"a": 1}),
    GymTurn(Path("/")),
]


def test_values_of_all_environments_arrive_as_they_were_and_arrays_can_be_written_to():
    sent = list(enumerate(VALUES))
    _, _, order = codec.unpack_request(codec.portable(codec.pack_request(1, 1, Play(sent))))
    opened = [item[1].open() if isinstance(item[1], Pickled) else item for item in order.items]
    reply = codec.unpack_reply(codec.portable(codec.pack_reply(1, list(starmap(Outcome, sent)))))
    for found in ([value for _, value in opened], [outcome.value for outcome in reply.outcomes]):
        assert list(map(type, found)) == list(map(type, VALUES))
        for one, other in zip(found, VALUES, strict=True):
            same(tuple(one) if isinstance(one, GymTurn) else one, tuple(other) if isinstance(one, GymTurn) else other)
        assert all(value.flags.writeable for value in found if isinstance(value, np.ndarray))


DIFFERENT = [
    np.zeros(3), np.zeros(3, np.float32), np.zeros((3, 1)), np.zeros(4), np.ones(3), 0, 0.0, False, None, "0", b"0",
    (0,), [0], (0, 0), {"a": 0}, {"b": 0}, {"a": 0.0}, np.int64(0), np.int32(0), np.zeros(100), np.ones(100),
]  # fmt: skip


def test_digests_are_equal_for_equal_observations_only():
    digests = [digest_of(value) for value in DIFFERENT]
    assert len(set(digests)) == len(DIFFERENT)
    assert digests == [digest_of(detached(value)) for value in DIFFERENT]
    large = np.arange(84 * 84 * 3).reshape(84, 84, 3)
    for view in (large.transpose(1, 0, 2), large[::-1], large[5:-5], large[..., 0], np.asfortranarray(large)):
        assert digest_of(view) == digest_of(detached(view))
    assert digest_of(np.array([np.nan])) == digest_of(np.array([np.nan]))
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_a_detached_value_shares_nothing():
    array = np.zeros(3)
    value = {"a": array, "b": (array, [array])}
    copy = detached(value)
    array[:] = 1
    assert copy["a"].sum() == copy["b"][0].sum() == copy["b"][1][0].sum() == 0
