"""Each scanner finds the fault that is planted among fifty trajectories, and nothing in those that are clean."""

import copy
import math

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.evaluation.scanners import SCANNERS, Finding, Scan, scan, scanners_of

PLANTED = 17
TURNS = 5


def record(env_id):
    """An episode of five turns on a walk, in which the state changes; three of four succeed."""
    success, seed = env_id % 4 != 0, env_id // 2
    messages = [{"role": "system", "content": "Play."}]
    for turn in range(TURNS):
        thought = f"I am at {turn + seed} and the goal is to the right, so I go there."
        messages += [
            {"role": "user", "content": f"You are at {turn + seed} of 60."},
            {"role": "assistant", "content": f"<think>{thought}</think><answer>Right</answer>"},
        ]
    infos = [{"action_is_effective": True, "action_is_valid": True, "success": False} for _ in range(TURNS)]
    infos[-1]["success"] = success
    return {
        "env_id": env_id, "group_id": seed, "tag": "Walk", "seed": seed, "success": success,
        "messages": messages, "actions": [[2]] * TURNS, "rewards": [-0.1] * (TURNS - 1) + [10.0 if success else -0.1],
        "infos": infos, "penalty": 0, "metrics": {},
        "replies": [{"finish_reason": "stop"} for _ in range(TURNS)],
    }  # fmt: skip


def rollouts(count=50):
    return [record(env_id) for env_id in range(count)]


def say(text):
    def plant(episode):
        episode["messages"][4]["content"] = text

    return plant


def stand_still(episode):
    for message in episode["messages"][1::2]:
        message["content"] = "You are at 3 of 60."


def never_act(episode):
    episode.update(actions=[[] for _ in range(TURNS)], success=False)
    for info in episode["infos"]:
        info.update(action_is_valid=False, success=False)


def say_two_actions(episode):
    """The second one is dropped, as the chat shows."""
    episode["raw_replies"] = [message["content"] for message in episode["messages"][2::2]]
    episode["raw_replies"][2] = episode["raw_replies"][2].replace("Right", "Right || Left")


def start_elsewhere(episode):
    episode["messages"][1]["content"] = "You are at 1 of 60."


def win_without_goal(episode):
    episode["infos"][-1]["success"] = False


def earn_without_goal(episode):
    episode.update(success=False)
    episode["infos"][-1]["success"] = False
    episode["rewards"][0] = 3.0


FAULTS = {
    "an English refusal": ("refusals", say("I'm sorry, but I can't help with this game.")),
    "a refusal with a curly apostrophe": ("refusals", say("<think>I can’t assist with that</think>")),
    "a refusal of the server": ("refusals", lambda episode: episode["replies"][1].update(refused="policy")),
    "a filtered reply": ("refusals", lambda episode: episode["replies"][1].update(filtered=True)),
    "a failed environment": ("broken environments", lambda episode: episode.update(env_error="it hung")),
    "an environment that stands still": ("broken environments", stand_still),
    "a reply that is cut off": ("cut off", lambda episode: episode["replies"][4].update(cut_off=True)),
    "a prompt without its first turn": (
        "shortened prompts",
        lambda episode: episode["replies"][3].update(turns_left_out=1),
    ),
    "a sentence again and again": ("repeated text", say("<think>" + "I should go right now. " * 6 + "</think>")),
    "a word again and again": ("repeated text", say("<think>so " + "wait " * 30 + "</think>")),
    "actions that are never valid": ("never valid", never_act),
    "an action that is dropped": ("dropped actions", say_two_actions),
    "another start than the group's": ("not reproducible", start_elsewhere),
    "a reward that is no number": ("odd rewards", lambda episode: episode["rewards"].__setitem__(2, math.nan)),
    "a reward that is far too large": ("odd rewards", lambda episode: episode["rewards"].__setitem__(2, 1e6)),
    "a success without the goal": ("suspicious successes", win_without_goal),
    "a success without an action": ("suspicious successes", lambda episode: episode.update(actions=[[]] * TURNS)),
    "a reward without the goal": ("suspicious successes", earn_without_goal),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_scanner_finds_its_planted_fault_and_no_other_trajectory(fault):
    scanner, plant = FAULTS[fault]
    records = rollouts()
    plant(records[PLANTED])
    found = list(SCANNERS[scanner](records))
    assert {each.env_id for each in found} == {PLANTED}, found


def test_a_finding_quotes_what_the_model_wrote_without_the_tag_of_its_prompt():
    never = record(PLANTED)
    never_act(never)
    never["raw_replies"] = [f"I can't help with step {turn}." for turn in range(TURNS)]
    for message, written in zip(never["messages"][2::2], never["raw_replies"], strict=True):
        message["content"] = f"<think>{written}"
    for scanner in ("refusals", "never valid"):
        first = next(iter(SCANNERS[scanner]([never])))
        assert first.excerpt == "I can't help with step 0."


def test_every_scanner_has_a_planted_fault():
    assert {scanner for scanner, _ in FAULTS.values()} == SCANNERS.keys()


def test_clean_trajectories_have_nothing():
    scanned = scan(rollouts(500))
    assert not scanned.failed and not any(scanned.found.values())


def test_the_goals_reward_is_not_odd_where_success_is_rare():
    records = rollouts(500)
    for each in records[::40]:
        each.update(success=True, rewards=[-0.1] * (TURNS - 1) + [10.9])
    for each in (one for one in records if one["env_id"] % 40):
        each.update(success=False, rewards=[-0.1] * TURNS)
    assert not list(SCANNERS["odd rewards"](records))
    records[PLANTED]["rewards"][-1] = 10.9
    assert [each.env_id for each in SCANNERS["odd rewards"](records)] == [PLANTED]


def test_boards_and_lists_of_moves_are_no_repeated_text():
    board = "\n".join(["# # # # # # # # # # # # # # # # # # # # # # # # # #"] * 8)
    reply = f"<think>The board is\n{board}\nso I go up.</think><answer>{'Up || ' * 40}Up</answer>"
    records = rollouts()
    say(reply)(records[PLANTED])
    assert not list(SCANNERS["repeated text"](records))


def test_all_copies_of_a_text_are_counted():
    records = rollouts()
    say("<think>" + "let me think again " * 30 + "</think>")(records[PLANTED])
    (found,) = SCANNERS["repeated text"](records)
    assert found.why == "the same words 29 times in a row"  # the first stands behind the tag


def test_findings_name_the_turn_and_quote_the_text():
    records = rollouts()
    say("No. I will not: I must decline to participate.")(records[PLANTED])
    (found,) = SCANNERS["refusals"](records)
    assert found.turn == 2 and "decline to participate" in found.excerpt


def test_records_without_texts_are_looked_through_as_far_as_they_go():
    records = [
        {name: value for name, value in each.items() if name not in ("messages", "infos")} for each in rollouts()
    ]
    records[PLANTED]["rewards"] = [math.inf] * TURNS
    scanned = scan(records)
    assert [name for name, findings in scanned.found.items() if findings] == ["odd rewards"]
    unread = "refusals, broken environments, repeated text, never valid, dropped actions, not reproducible"
    told = f"RUN shows them; without texts, these find less: {unread}, suspicious successes"
    assert scanned.lines()[0].endswith(told) and not scan(rollouts()).blind


def test_scanners_leave_records_as_they_were():
    records = rollouts()
    before = copy.deepcopy(records)
    scan(records)
    assert records == before


def emptying(records):
    records[0]["success"] = "changed"
    records.clear()
    return []


def test_a_scanner_that_changes_records_changes_them_for_itself_alone():
    records = rollouts(4)
    found = scan(records, {"emptying": emptying, "shouting": shouting}).found
    assert records == rollouts(4) and len(found["shouting"]) == 1


@pytest.mark.parametrize("actions", [[2, 3], ["search[rivers]"]], ids=["there and back", "the same question"])
def test_a_state_that_may_well_come_again_is_no_broken_environment(actions):
    records = rollouts(4)
    stand_still(records[1])
    records[1]["actions"] = [actions] * TURNS
    assert not list(SCANNERS["broken environments"](records))


def shouting(records):
    return [Finding(each["env_id"], "it shouts") for each in records if each["env_id"] == 3]


def test_a_function_is_a_scanner():
    assert scan(rollouts(), {"shouting": shouting}) == Scan({"shouting": [Finding(3, "it shouts")]}, [])
    assert scanners_of(["math:floor"], "here") == SCANNERS | {"math:floor": math.floor}


@pytest.mark.parametrize("name", ["nothing", "math:nothing", "no_such_module:f", "math:pi"])
def test_what_is_no_scanner_is_refused_by_its_name(name):
    with pytest.raises(ConfigError, match=f"here is '{name}'"):
        scanners_of([name], "here")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda _: 1 / 0, "test_scanners.py, line "),
        (lambda _: ["a word"], "it yields 'a word'"),
        (lambda _: None, "not iterable"),
    ],
)
def test_a_scanner_that_fails_is_a_sentence_and_costs_its_own_findings_alone(wrong, said):
    scanned = scan(rollouts(4), {"mine": wrong, "shouting": shouting})
    assert list(scanned.found) == ["shouting"] and len(scanned.found["shouting"]) == 1
    (sentence,) = scanned.failed
    assert sentence.startswith("scanner 'mine' failed") and said in sentence
    assert len(scanned.lines()) == 2


def with_replies(env_id, raw, shown):
    record = rollouts(1)[0] | {"env_id": env_id, "raw_replies": [raw]}
    chat = [{"role": "user", "content": "State."}, {"role": "assistant", "content": f"<answer>{shown}</answer>"}]
    return record | {"messages": chat, "actions": [[shown]], "rewards": [0.0], "infos": [{}]}


def test_actions_that_were_dropped_are_found():
    wrote = "<think>so</think><answer>SELECT a || b FROM c</answer>"
    records = [
        with_replies(0, wrote, "SELECT a"),
        with_replies(1, "<think>so</think><answer>Up||Down||</answer>", "Up||Down||"),
        with_replies(2, "<answer>Up</answer>", "Up"),
        with_replies(3, "Up, Up", ""),
    ]
    found = SCANNERS["dropped actions"](records)
    assert [(each.env_id, each.turn) for each in found] == [(0, 1)]


def test_episodes_of_a_seed_that_differ_after_the_same_actions_are_found():
    def episode(env_id, states, actions, seed=7, tag="A"):
        shown = [{"role": "user", "content": f"Turn 1:\nState:\n{state}\nAlways output: x"} for state in states]
        return rollouts(1)[0] | {"env_id": env_id, "tag": tag, "seed": seed, "messages": shown, "actions": actions}

    records = [
        episode(0, ["s", "a", "b"], [["Up"], ["Up"]]),
        episode(1, ["s", "c"], [["Down"], ["Up"]]),  # other actions
        episode(2, ["s", "a", "d"], [["Up"], ["Up"]]),
        episode(3, ["t", "a"], [["Up"]], seed=8),
        episode(4, ["t", "a"], [["Up"]], tag="B"),
        episode(5, ["t", "a"], [["Up"]]),
    ]
    assert [(each.env_id, each.turn) for each in SCANNERS["not reproducible"](records)] == [(2, 3), (5, 1)]
    long = [episode(n, [f"{'the same ' * 99}{n}{' again' * 99}"], []) for n in range(2)]
    assert "same 1 again" in next(iter(SCANNERS["not reproducible"](long))).excerpt


def test_the_line_counts_trajectories_and_not_findings():
    records = rollouts()
    for reply in records[PLANTED]["replies"]:
        reply["cut_off"] = True
    assert "cut off in 1 trajectory;" in scan(records).lines()[0]
    assert scan(rollouts()).lines() == [f"scanners: none of {len(SCANNERS)} found anything"]
