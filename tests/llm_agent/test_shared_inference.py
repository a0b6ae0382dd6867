# ruff: noqa: SIM117
"""Requests of several threads in batches: which share one, who gets which rows, and what becomes of errors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ragen.errors import InputError, StateError
from ragen.llm_agent.rollout.actor import Actor
from ragen.llm_agent.rollout.shared_inference import SharedLLMInferenceManager, joined, row_count, rows_of
from ragen.llm_agent.tokens.dataproto import object_array
from support.later import torch
from support.rollouts import batch_of, no_prompts

LONG = 60.0  # a wait that a test must never have to wait for


class Tokenizer:
    pad_token_id = 9


class Recorder(Actor):
    """Answers with the prompt's own name; remembers its batches."""

    def __init__(self, hook=None, thread_safe=False):
        super().__init__()
        self.thread_safe = thread_safe
        self.batches = []
        self.hook = hook or (lambda names: None)

    def generate_sequences(self, prompts):
        names = list(prompts.non_tensor_batch["env_ids"])
        self.batches.append(names)
        self.hook(names)
        return batch_of(env_ids=object_array(names), response_texts=object_array(f"to {n}" for n in names))


def prompts(*names, width=2, **meta_info):
    ids = torch.tensor([[1] * width] * len(names))
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return batch_of(tensors, meta_info, env_ids=object_array(names))


def texts(answers):
    return list(answers.non_tensor_batch["response_texts"])


def manager(actor, *clients, **options):
    made = SharedLLMInferenceManager(actor, Tokenizer(), **options)
    for client in clients:
        made.join(client)
    return made


def ask_all(inference, requests):
    """A thread for each client's request; the answers' texts by client."""

    def ask(client):
        try:
            return texts(inference.generate_sequences(requests[client], client=client))
        finally:
            inference.leave(client)

    with ThreadPoolExecutor(len(requests)) as threads:
        return dict(zip(requests, threads.map(ask, requests), strict=True))


def test_a_batch_goes_off_as_soon_as_every_client_waits():
    with manager(actor := Recorder(), "a", "b", "c", max_wait=LONG) as inference:
        answers = ask_all(inference, {"a": prompts(1, 2), "b": prompts(3), "c": prompts(4, 5)})
    assert answers == {"a": ["to 1", "to 2"], "b": ["to 3"], "c": ["to 4", "to 5"]}
    assert len(actor.batches) == 1 and sorted(actor.batches[0]) == [1, 2, 3, 4, 5]


def test_a_client_that_stays_away_is_waited_for_no_longer_than_max_wait():
    with manager(Recorder(), "a", "away", max_wait=0.01) as inference:
        assert texts(inference.generate_sequences(prompts(1), client="a")) == ["to 1"]


def test_a_client_that_leaves_is_not_waited_for():
    with manager(Recorder(), "a", "b", max_wait=LONG) as inference, ThreadPoolExecutor(1) as threads:
        future = threads.submit(inference.generate_sequences, prompts(1), client="a")
        inference.leave("b")
        inference.leave("b")
        assert texts(future.result(10)) == ["to 1"]


def test_no_batch_is_larger_than_allowed_and_the_rows_keep_their_order():
    with manager(actor := Recorder(), "a", "b", max_wait=LONG, max_batch_size=3) as inference:
        answers = ask_all(inference, {"a": prompts(*range(8)), "b": prompts(100, 101)})
    assert answers == {"a": [f"to {n}" for n in range(8)], "b": ["to 100", "to 101"]}
    assert max(map(len, actor.batches)) <= 3
    assert sorted(n for batch in actor.batches for n in batch) == [*range(8), 100, 101]


def test_a_large_request_does_not_hold_up_a_small_one():
    asked = threading.Event()
    with manager(actor := Recorder(lambda names: asked.wait(10)), max_batch_size=2, max_wait=0) as inference:
        with ThreadPoolExecutor(2) as threads:
            large = threads.submit(inference.generate_sequences, prompts(*range(10)), client="large")
            while not actor.batches:
                pass
            small = threads.submit(inference.generate_sequences, prompts(50), client="small")
            while len(inference._queue) < 2:
                pass
            asked.set()
            assert (texts(small.result()), len(texts(large.result()))) == (["to 50"], 10)
    assert any(50 in batch for batch in actor.batches[:3])  # after what ran, and one batch that came before it


def test_requests_are_answered_in_the_order_in_which_they_came():
    gate = threading.Event()
    with manager(actor := Recorder(lambda names: gate.wait(10)), max_batch_size=1, max_wait=0) as inference:
        with ThreadPoolExecutor(5) as threads:
            for name in range(5):
                threads.submit(inference.generate_sequences, prompts(name), client=name)
                while sum(map(len, actor.batches)) + len(inference._queue) <= name:
                    pass
            gate.set()
    assert actor.batches == [[0], [1], [2], [3], [4]]


def test_an_actor_that_is_not_thread_safe_is_called_by_one_thread_alone():
    callers = []
    actor = Recorder(lambda names: callers.append(threading.get_ident()))
    with manager(actor, max_wait=0) as inference, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: texts(inference.generate_sequences(prompts(n))), range(40)))
    assert answers == [[f"to {n}"] for n in range(40)]
    assert len(set(callers)) == 1


def test_a_thread_safe_actor_answers_several_clients_at_the_same_time():
    together = threading.Barrier(3)
    with manager(actor := Recorder(lambda names: together.wait(10), thread_safe=True), "a", "b", "c") as inference:
        assert ask_all(inference, {c: prompts(c) for c in "abc"}) == {c: [f"to {c}"] for c in "abc"}
    assert sorted(actor.batches) == [["a"], ["b"], ["c"]]


def test_an_error_reaches_those_whose_batch_it_was_and_no_other():
    def fail(names):
        if "bad" in names:
            raise RuntimeError("out of memory")

    with manager(Recorder(fail), max_wait=0) as inference:
        with pytest.raises(RuntimeError, match="out of memory"):
            inference.generate_sequences(prompts("bad"))
        assert texts(inference.generate_sequences(prompts("good"))) == ["to good"]


def test_an_error_in_a_part_of_a_request_ends_the_request():
    def fail(names):
        if 1 in names:
            raise RuntimeError("lost")

    with manager(actor := Recorder(fail), max_wait=0, max_batch_size=1) as inference:
        with pytest.raises(RuntimeError, match="lost"):
            inference.generate_sequences(prompts(0, 1, 2, 3))
        assert texts(inference.generate_sequences(prompts(7))) == ["to 7"]
    assert actor.batches == [[0], [1], [7]]


def test_too_few_answers_are_an_error():
    class Short:
        def generate_sequences(self, asked):
            return rows_of(asked, 0, 1)

    with manager(Short(), max_wait=0) as inference, pytest.raises(InputError, match="1 answers to 2 prompts"):
        inference.generate_sequences(prompts(1, 2))


def test_prompts_that_are_to_be_answered_differently_share_no_batch():
    with manager(actor := Recorder(), "a", "b", max_wait=LONG) as inference:
        ask_all(inference, {"a": prompts(1, validate=True), "b": prompts(2, validate=False)})
    assert sorted(actor.batches) == [[1], [2]]


def test_closing_releases_who_waits_and_ends_the_threads():
    inference = manager(Recorder(), "a", "away", max_wait=LONG)
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(inference.generate_sequences, prompts(1), client="a")
        while not inference._queue:
            pass
        inference.close()
        with pytest.raises(StateError, match="closed before"):
            future.result(10)
    inference.close()
    with pytest.raises(StateError, match="is closed"):
        inference.generate_sequences(prompts(1))
    assert not any(thread.is_alive() for thread in inference._threads)


def test_prompts_are_padded_on_their_left_and_answers_on_their_right():
    short, long = prompts(1, width=1), prompts(2, 3, width=3)
    assert joined([short, long], 9, left=True).batch["input_ids"].tolist() == [[9, 9, 1], [1, 1, 1], [1, 1, 1]]
    assert joined([short, long], 9, left=True).batch["attention_mask"].tolist()[0] == [0, 0, 1]
    assert joined([short, long], 9, left=False).batch["input_ids"].tolist()[0] == [1, 9, 9]


def test_positions_with_several_rows_of_their_own_are_padded_too():
    parts = [batch_of({"position_ids": torch.ones(1, 4, n)}) for n in (2, 5)]
    assert joined(parts, 9, left=True).batch["position_ids"].shape == (2, 4, 5)


def test_columns_that_are_plain_lists_are_cut_and_counted():
    answers = no_prompts()
    answers.non_tensor_batch = {"response_texts": ["x", "y", "z"]}
    assert row_count(answers) == 3
    cut = rows_of(answers, 1, 3)
    assert list(cut.non_tensor_batch["response_texts"]) == ["y", "z"]
    assert isinstance(cut.non_tensor_batch["response_texts"], np.ndarray)


def test_many_threads_each_get_their_own_answers():
    for thread_safe in (False, True):
        with manager(Recorder(thread_safe=thread_safe), max_batch_size=7, max_wait=0) as inference:
            with ThreadPoolExecutor(16) as threads:
                requests = [[f"{n}.{k}" for k in range(1 + n % 12)] for n in range(150)]
                answers = threads.map(lambda names: texts(inference.generate_sequences(prompts(*names))), requests)
                assert list(answers) == [[f"to {name}" for name in names] for names in requests]
