"""verl's agent loop in this process, with a stand-in for the server: tokens, masks, rewards, metrics."""

import asyncio
import copy
import os
import signal
import tempfile
from contextlib import suppress
from functools import cache

import pytest

from ragen.config.loading import load_config, plain_sections
from ragen.errors import BackendError, ConfigError, EnvError, InputError
from support.agent_loop import StandInClient, make_loop, play, service_of, tokenizer, trainer_config

ROWS = [("SimpleSokoban", 1), ("SimpleSokoban", 1), ("FrozenLake", 3), ("FrozenLake", 4), ("Bandit", 5)]


@cache
def composed(*overrides):
    given = ["es_manager.max_workers=2", "es_manager.crash_report_dir=null", "agent_loop.service=local", "output_dir=x"]
    return plain_sections(load_config("_2_sokoban", [*given, *overrides]))


def ragen(*overrides, lanes=False):
    config = copy.deepcopy(composed(*overrides))
    if config["output_dir"] == "x":
        config["output_dir"] = tempfile.mkdtemp(prefix="job")  # with no replies of another one
    config["es_manager"]["use_multiprocessing"] = lanes
    return config


def mask_by_reading(tokens, prompt, tokenizer):
    """The mask as a reader of the chat would draw it: from after each opened reply to the end of its turn.

    Independent of the loop: it looks at token strings alone.
    """
    strings = tokenizer.convert_ids_to_tokens([*prompt, *tokens])
    mask, speaking = [], False
    for place, string in enumerate(strings):
        mask.append(int(speaking))
        if speaking and string == "<|im_end|>":
            speaking = False
        elif string == "<think>" and tokenizer.decode(tokenizer.convert_tokens_to_ids(strings[: place + 1])).endswith(
            "<|im_start|>assistant\n<think>"
        ):
            speaking = True
    return mask[len(prompt) :]


def replies_of(client, output):
    """What the server sampled for a trajectory: the calls whose prompts begin as its prompt and are parts of it."""
    ids = [*output.prompt_ids, *output.response_ids]
    calls = [call for call in client.calls if ids[: len(call["prompt_ids"])] == call["prompt_ids"]]
    by_length = {len(call["prompt_ids"]): call for call in calls}
    return [by_length[length] for length in sorted(by_length)]


@pytest.fixture(scope="module")
def played():
    client = StandInClient(tokenizer())
    config = trainer_config(ragen(lanes=True))
    return client, play(config, client, ROWS)


def test_the_mask_is_right_token_by_token(played):
    client, outputs = played
    for output in outputs:
        assert output.response_mask == mask_by_reading(output.response_ids, output.prompt_ids, client.tokenizer)
        assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
        assert output.response_ids[-1] == client.tokenizer.eos_token_id
        assert 0 < sum(output.response_mask) < len(output.response_mask) or output.num_turns == 2


def test_what_the_server_sampled_goes_into_training_as_it_is(played):
    client, outputs = played
    for output in outputs:
        calls = replies_of(client, output)
        assert len(calls) == output.num_turns / 2
        sampled = [token for call in calls for token in call["reply"]]
        log_probs = [value for call in calls for value in call["log_probs"]]
        chosen = [place for place, bit in enumerate(output.response_mask) if bit]
        assert [output.response_ids[place] for place in chosen] == sampled
        assert [output.response_logprobs[place] for place in chosen] == log_probs
        silent = [value for value, bit in zip(output.response_logprobs, output.response_mask, strict=True) if not bit]
        assert set(silent) <= {0.0}


def test_rewards_metrics_and_versions_of_weights_are_forwarded(played):
    client, outputs = played
    first, second, third, other, _ = outputs
    assert (first.response_ids, first.reward_score) == (second.response_ids, second.reward_score)
    assert other.prompt_ids != third.prompt_ids
    assert len({tuple(output.extra_fields["reward_extra_info"]) for output in outputs}) == 1  # verl reads the first's
    for output in outputs:
        extra, info = output.extra_fields, output.extra_fields["reward_extra_info"]
        assert len(extra["turn_scores"]) == len(extra["tool_rewards"]) == output.num_turns / 2
        assert output.reward_score == pytest.approx(sum(extra["turn_scores"]))
        assert output.reward_score == pytest.approx(info["env_reward"] + info["format_penalty"])
        assert sum(extra["tool_rewards"]) == pytest.approx(info["env_reward"])
        assert "acc" not in info and info["success"] in (0, 1) and info["num_actions"] >= 0
        assert info["env_seconds"] == output.metrics.tool_calls > 0 < output.metrics.generate_sequences
        assert 1 <= extra["min_global_steps"] <= extra["max_global_steps"] <= len(client.calls)
        assert (output.num_turns > 2) == (extra["min_global_steps"] < extra["max_global_steps"])
    assert any(output.extra_fields["reward_extra_info"]["format_penalty"] < 0 for output in outputs)


def test_every_request_of_a_trajectory_goes_to_the_same_server(played):
    client, outputs = played
    for output in outputs[2:]:
        assert len({call["request_id"] for call in replies_of(client, output)}) == 1
    assert len({call["request_id"] for call in client.calls}) == len(outputs)


def test_kills_of_lanes_in_between_change_nothing(played):
    _, expected = played
    client = StandInClient(tokenizer())
    config = trainer_config(ragen(lanes=True))
    killed = []

    def kill(count):
        service = service_of(config, client)
        for pid in [lane.pid for lane in service._envs.stats() if lane.lane != "main" and lane.pid]:
            if count % 4 == 3:
                with suppress(ProcessLookupError):  # it has only just died
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    client.before_answer = kill
    outputs = play(config, client, ROWS)
    assert len(killed) >= 4
    for output, original in zip(outputs, expected, strict=True):
        assert output.response_ids == original.response_ids
        assert output.response_mask == original.response_mask
        assert output.extra_fields["turn_scores"] == original.extra_fields["turn_scores"]


@pytest.mark.parametrize("policy", ["fallback", "truncate", "raise"])
@pytest.mark.parametrize("window", [[], ["+agent_proxy.context_window_mode=single_turn"]])
@pytest.mark.parametrize("place", ["init", "reset", "turn 0", "turn 1"])
def test_a_failed_trajectory_raises_and_disturbs_no_other(place, window, policy):
    env = f"{{env_type: 'support.faulty_envs:Faulty', env_config: {{fault: raises, place: {place}}}, "
    env += "max_actions_per_traj: 9, env_instruction: go}"
    client = StandInClient(tokenizer())
    config = trainer_config(ragen(f"+custom_envs.Evil={env}", f"es_manager.on_env_failure={policy}", *window), 3000)
    bad, good = play(config, client, [("Evil", 1), ("SimpleSokoban", 1)])
    assert isinstance(bad, EnvError) and "boom" in str(bad)
    assert all(any(output.response_mask) for output in (good if window else [good]))


def test_a_trajectory_that_runs_out_of_room_ends_with_what_the_model_said():
    client = StandInClient(tokenizer())
    config = trainer_config(ragen(), response_length=330)
    outputs = play(config, client, ROWS)
    for output in outputs:
        assert len(output.response_ids) <= 330
        assert output.response_mask[-1] == 1
        assert output.response_mask == mask_by_reading(output.response_ids, output.prompt_ids, client.tokenizer)
    assert any(0 < output.num_turns < 10 for output in outputs[:4])


def test_a_reply_may_have_what_the_configuration_allows_and_the_room_leaves():
    def budgets(room):
        client = StandInClient(tokenizer(), policy=lambda prompt, draws: "Up " * 500, ends=False)
        config = trainer_config(ragen("actor_rollout_ref.rollout.response_length=60"), response_length=room)
        (output,) = play(config, client, [("SimpleSokoban", 1)])
        asked = [call["sampling_params"]["max_tokens"] for call in client.calls]
        assert sum(output.response_mask) == sum(asked)
        assert output.extra_fields["reward_extra_info"]["format_penalty"] == pytest.approx(-0.1 * len(asked))
        return asked, client.calls

    asked, calls = budgets(2000)
    assert asked == [60] * 5
    context = len(calls[1]["prompt_ids"]) - len(calls[0]["prompt_ids"]) - 60
    assert budgets(60 + context + 20)[0] == [60, 20]
    assert budgets(60 + context)[0] == [60]
    assert budgets(50)[0] == [50]


def test_with_a_window_every_turn_is_an_output_of_its_own():
    client = StandInClient(tokenizer())
    config = trainer_config(ragen("+agent_proxy.context_window_mode=limited_multi_turn"), 3000, 400)
    outputs = play(config, client, [("SimpleSokoban", 1), ("Bandit", 5)])
    for turns in outputs:
        assert len(turns) == turns[0].num_turns / 2
        for turn in turns:
            assert set(turn.response_mask) == {1}
            assert turn.reward_score == turns[-1].reward_score
            assert any(c["prompt_ids"] == turn.prompt_ids and c["reply"] == turn.response_ids for c in client.calls)


def test_a_trajectory_whose_server_gives_no_tokens_raises():
    client = StandInClient(tokenizer(), policy=lambda prompt, draws: "", ends=False)
    with pytest.raises(BackendError):
        play(trainer_config(ragen(), 3000, 2000), client, [("SimpleSokoban", 1)])


PAGES = "{env_type: 'support.small_games:Pages', max_actions_per_traj: 9, env_instruction: go, env_config: {%s}}"


@pytest.mark.parametrize(
    "window", [[], ["+agent_proxy.context_window_mode=limited_multi_turn"]], ids=["whole", "turns"]
)
def test_an_observation_that_does_not_fit_ends_its_own_trajectory(window):
    pages = f"+custom_envs.Pages={PAGES % 'seed: 1, page: 2'}"
    config = trainer_config(ragen(pages, "agent_proxy.max_actions_per_turn=1", *window), 3000, 2000)
    of_long, other = play(config, StandInClient(tokenizer()), [("Pages", 1), ("Pages", 2)])
    ends = [rows[-1] if isinstance(rows, list) else rows for rows in (of_long, other)]
    assert [end.num_turns for end in ends] == [2 * 2, 2 * 4]
    assert ends[0].reward_score == ends[1].reward_score / 2
    assert any(ends[0].response_mask)


SOKOBAN = {"tag": "SimpleSokoban", "seed": 1}


@pytest.mark.parametrize(
    ("info", "lengths", "changes"),
    [
        ({"index": 3}, {}, {}),
        (SOKOBAN, {"prompt_length": 100}, {}),
        ({"tag": "VisualSimpleSokoban", "seed": 1}, {}, {}),
        ({"tag": "X", "seed": 1}, {}, {}),
        (SOKOBAN, {}, None),
    ],
)
def test_what_cannot_work_is_refused(info, lengths, changes):
    config = trainer_config(ragen() | (changes or {}), **lengths)
    if changes is None:
        del config["ragen"]
    client = StandInClient(tokenizer())

    async def work():
        agent = make_loop(config, client)
        try:
            await agent.run({}, extra_info=info)
        finally:
            await service_of(config, client).shut_down()

    with pytest.raises((ConfigError, InputError)):
        asyncio.run(work())


@pytest.mark.parametrize(("after", "step", "is_used"), [(4, 7, True), (0, 7, True), (4, 8, False)])
def test_a_killed_job_takes_the_replies_of_the_step_in_flight(tmp_path, after, step, is_used):
    class Killed(BaseException):
        """The end of the process."""

    def end(calls):
        if calls == after:
            raise Killed

    whole, first, second = (StandInClient(tokenizer()) for _ in range(3))
    expected = play(trainer_config(ragen(f"output_dir={tmp_path}/whole")), whole, ROWS, step=7)
    first.before_answer = end
    with suppress(Killed):
        play(trainer_config(ragen(f"output_dir={tmp_path}/job")), first, ROWS, step=7)
    outputs = play(trainer_config(ragen(f"output_dir={tmp_path}/job")), second, ROWS, step=step)
    assert len(first.calls) == after and len(second.calls) == len(whole.calls) - after * is_used
    for output, other in zip(outputs, expected, strict=True):
        assert (output.response_ids, output.response_logprobs) == (other.response_ids, other.response_logprobs)
    assert len(list((tmp_path / "job" / "replies").iterdir())) <= 2
