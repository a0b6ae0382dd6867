"""``ragen diagnose``: scorers agree with a plain reading of the model; the command prints, and refuses clearly."""

import json
import re

import numpy as np
import pytest

from ragen.errors import BackendError
from ragen.llm_agent.evaluation.diagnose import FIRST_TURNS, TRAJECTORIES, diagnose, pairs_of, sampled
from ragen.llm_agent.evaluation.diagnose_command import main
from ragen.llm_agent.evaluation.scorers import HfScorer, ServerScorer
from support.chat_server import chat_server, raw
from support.later import openai, torch
from support.random_qwen import tiny_model, tokenizer

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14, 15]]
THOUGHTS = [[3], [4, 5, 6, 7], [8, 9], [4, 5]]


def record(env_id, thoughts, tag="Walk", group_id=None, question="Where is {}?"):
    group_id = env_id if group_id is None else group_id
    messages = [{"role": "system", "content": "Play."}]
    for thought in thoughts:
        said = f"<think>{thought}</think>" if thought else ""
        messages += [
            {"role": "user", "content": question.format(group_id)},
            {"role": "assistant", "content": f"{said}<answer>Up</answer>"},
        ]
    count = len(thoughts)
    return {
        "env_id": env_id, "group_id": group_id, "tag": tag, "seed": group_id, "mode": "val", "success": False,
        "messages": messages, "actions": [[1]] * count, "rewards": [0.0] * count, "infos": [{}] * count,
        "penalty": 0, "metrics": {},
    }  # fmt: skip


def write(folder, records):
    folder.mkdir(exist_ok=True)
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), "utf-8")
    return str(folder)


def plainly(model, prompt, thought):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *thought]])).logits[0].double()
    scores = torch.log_softmax(logits, -1)
    return sum(scores[len(prompt) + at - 1, token].item() for at, token in enumerate(thought))


def test_a_model_scores_from_kept_prompts_as_it_reads_whole_texts():
    model = tiny_model()
    found = HfScorer(model, tokenizer(), "tiny").log_probs(PROMPTS, THOUGHTS)
    expected = [[plainly(model, prompt, thought) for prompt in PROMPTS] for thought in THOUGHTS]
    assert found == pytest.approx(np.array(expected), abs=1e-4)


def echoing(prompt, _):
    return raw(json.dumps({"choices": [{"logprobs": {"token_logprobs": [None, *(-t / 8 for t in prompt[1:]), -7.0]}}]}))


def of_prompt(prompt, _):
    rest = [{str(token): {"logprob": -token / 8}, "1": {"logprob": -99.0}} for token in prompt[1:]]
    return raw(json.dumps({"choices": [{"text": "", "prompt_logprobs": [None, *rest]}]}))


def without(prompt, _):
    return raw(json.dumps({"choices": [{"text": "hello", "logprobs": None}]}))


def scorer_at(server):
    settings = openai.ApiSettings(model="tiny", base_url=server.url, max_retries=0)
    return ServerScorer(openai.OpenAIBackend(settings), tokenizer())


@pytest.mark.parametrize("script", [echoing, of_prompt])
def test_a_server_scores_what_it_is_sent(script):
    with chat_server(script) as server:
        found = scorer_at(server).log_probs(PROMPTS, THOUGHTS)
    assert found == pytest.approx(np.array([[-sum(each) / 8] * len(PROMPTS) for each in THOUGHTS]))


def test_a_server_that_scores_no_prompts_is_refused():
    refused = pytest.raises(BackendError, match=r"gives no log-probabilities of prompts.*--scorer")
    with chat_server(without) as server, refused:
        scorer_at(server).log_probs(PROMPTS, THOUGHTS)


def test_every_tag_is_measured_and_the_scorer_is_named():
    records = [record(at, ["up it is", "and up"], "AB"[at % 2], at // 4) for at in range(16)]
    scorer = HfScorer(tiny_model(), tokenizer(), "tiny")
    results = diagnose(records, scorer)
    assert [each["tag"] for each in results] == ["A", "B", "all"]
    first = results[0]["samples"][FIRST_TURNS]
    assert first["scorer"] == "tiny" and (first["thoughts"], first["prompts"]) == (8, 4)
    assert first["collapse/mi_estimate"] <= np.log(4) == first["collapse/mi_upper_bound"]
    assert results[0]["samples"][TRAJECTORIES]["thoughts"] == 16


def test_the_rate_of_thoughts_is_over_all_replies():
    (result,) = diagnose([record(0, ["a", ""]), record(1, ["b", "c"])])
    assert (result["replies"], result["thoughts"], result["valid_thinking_rate"]) == (4, 3, 0.75)


def test_samples_are_bounded_and_those_of_a_seed():
    pairs = pairs_of([record(at, ["a", "b", "c"]) for at in range(40)])
    for how in (FIRST_TURNS, TRAJECTORIES):
        drawn = sampled(pairs, 40, how, 16, 0)
        assert len(drawn) == 16 and drawn == sampled(pairs, 40, how, 16, 0) != sampled(pairs, 40, how, 16, 1)
    assert {pair.turn for pair in sampled(pairs, 40, FIRST_TURNS, 64, 0)} == {1}


def test_pairs_longer_than_the_context_are_left_out_and_counted():
    long = record(2, ["up"], question="far " * 600)
    scorer = HfScorer(tiny_model(), tokenizer(), "tiny")
    (result,) = diagnose([record(0, ["up"]), record(1, ["down"]), long], scorer)
    assert (result["samples"][FIRST_TURNS]["thoughts"], result["samples"][FIRST_TURNS]["too_long"]) == (2, 1)


def test_the_command_prints_rates_and_scanners_without_a_scorer(tmp_path, capsys):
    assert main([write(tmp_path / "run", [record(at, ["up"]) for at in range(4)])]) == 0
    out = capsys.readouterr().out
    assert "100.0%" in out and "--scorer MODEL" in out and "refusals: none" in out


def test_invalid_replies_are_counted_by_their_causes_with_what_to_do_about_the_most_frequent(tmp_path, capsys):
    mute = {"actions": [[]], "invalid": [True]}
    cut = [record(at, ["up"]) | mute | {"replies": [{"cut_off": True}]} for at in range(2)]
    refusing = record(2, [""]) | mute
    refusing["messages"][-1]["content"] = "I'm sorry, but I can't help with that."
    run = write(tmp_path / "run", [*cut, refusing])
    assert main([run]) == 0
    told = (
        "Invalid replies, in all turns: 3; 2 cut off, 1 refused to play. actor_rollout_ref.rollout.response_length sets"
    )
    assert told in capsys.readouterr().out


def test_turns_whose_action_the_environment_called_invalid_are_counted_apart_from_invalid_replies(tmp_path, capsys):
    infos = [{"action_is_valid": False}, {"action_is_valid": True}, {}]
    told = record(0, ["up"] * 4) | {"infos": [*infos, infos[0]], "actions": [["a"], ["b"], ["c"], []]}
    assert main([write(tmp_path / "run", [told, record(1, ["up"])])]) == 0
    assert "In 1 of 4 turns with an action, the environment called the last one invalid" in capsys.readouterr().out


def test_the_command_groups_failures_by_what_ended_them(tmp_path, capsys):
    mute = record(4, ["up", "up"]) | {"actions": [[1], []], "invalid": [True, True]}
    solved = record(5, ["up"], tag="Run") | {"success": True, "metrics": {"Run/success": 1.0}}
    broken = record(6, ["up"], tag="Run") | {"env_error": "ValueError: boom"}
    run = write(tmp_path / "run", [record(3, ["up"]), mute, solved, broken, record(7, ["up"])])
    (tmp_path / "run" / "run.json").write_text(
        json.dumps({"agent_proxy.max_turn": 1, "agent_proxy.enable_think": True})
    )
    assert main([run]) == 0
    out, _, _ = capsys.readouterr().out.partition("Thoughts")
    table, _, invalid = out.partition("\nInvalid replies")
    told = "1 named an unknown action beside valid ones, 1 named no action of the environment"
    assert invalid.startswith(f", in all turns: 2; {told}.\n")
    table = table.split("\n")[1:]
    assert [re.split(r"\s{2,}", line.strip()) for line in table if line.strip()] == [
        ["Why 4 of 5 trajectories failed"],
        ["what happened", "trajectories", "example", "tags"],
        ["it used all its turns without reaching the goal", "2", "env 3", "Walk"],
        ["its last reply named no action of the environment", "1", "env 4", "Walk"],
        ["the environment failed: ValueError: boom", "1", "env 6", "Run"],
    ]
    assert main([run, "--json"]) == 0
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert [each["env_ids"] for each in failures] == [[3, 7], [4], [6]]


def test_a_run_without_failures_says_so(tmp_path, capsys):
    solved = record(5, ["up"]) | {"success": True, "metrics": {"Walk/success": 1.0}}
    assert main([write(tmp_path / "run", [solved])]) == 0
    assert capsys.readouterr().out.startswith("None of 1 trajectory failed.\n")


def test_what_a_model_wrote_is_shown_with_invisible_characters_as_codes(tmp_path, capsys):
    hostile = "I cannot help with that \u202egnihton\x1b[2J"
    refused = [record(0, [hostile]) | {"messages": [{"role": "assistant", "content": hostile}]}]
    assert main([write(tmp_path / "run", refused)]) == 0
    out = capsys.readouterr().out
    assert r"\u202egnihton" in out and "\u202e" not in out and "\x1b" not in out


def test_findings_and_trajectories_are_counted_apart_and_scanners_without_texts_say_so(tmp_path, capsys):
    refused = [record(at, ["up", "down"]) | {"replies": [{"filtered": True}] * 2} for at in range(3)]
    assert main([write(tmp_path / "run", refused)]) == 0
    out = capsys.readouterr().out
    assert "refusals: 6 findings in 3 trajectories\n" in out and "  and 3 more" in out
    bare = [{name: value for name, value in each.items() if name not in ("messages", "infos")} for each in refused]
    assert main([write(tmp_path / "bare", bare)]) == 0
    out = capsys.readouterr().out
    assert "refusals: 6 findings in 3 trajectories (without texts it finds less)\n" in out
    assert "repeated text: none (without texts it finds less)\n" in out and "odd rewards: none\n" in out


def test_the_command_scores_with_a_model_of_a_folder(tmp_path, capsys):
    tiny_model().save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    run = write(tmp_path / "run", [record(at, [f"up {at}"]) for at in range(4)])
    assert main([run, "--scorer", str(tmp_path / "tiny"), "--json", "actor.hf.device=cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert str(tmp_path / "tiny") in told["scorer"]
    assert "collapse/retrieval_accuracy@8" in told["tags"][0]["samples"][FIRST_TURNS]


def test_a_policy_without_thoughts_gets_a_clear_sentence(tmp_path, capsys):
    assert main([write(tmp_path / "run", [record(at, ["", ""]) for at in range(3)])]) == 0
    assert "No thought between <think> and </think> was read" in capsys.readouterr().out


def test_a_run_whose_prompts_are_not_known_is_not_scored(tmp_path, capsys):
    run = write(tmp_path / "run", [record(0, ["up"]), record(1, ["up"])])
    (tmp_path / "run" / "run.json").write_text('{"agent_proxy.max_context_window": 2}')
    assert main([run, "--scorer", "never loaded"]) == 0
    assert "nothing is scored" in capsys.readouterr().out


def test_a_run_that_is_still_written_is_read_as_far_as_it_goes(tmp_path, capsys):
    run = write(tmp_path / "run", [record(0, ["up"])])
    with (tmp_path / "run" / "rollouts.jsonl").open("a") as file:
        file.write('{"env_id": 1, "gro')
    assert main([run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tags"][0]["trajectories"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "1"], "--samples"),
        (["--scorer", "m", "actor.base_url=http://localhost:1/v1"], "one scorer"),
        (["actor.model=m"], "one scorer"),
        (["trainer.x=1"], "'actor.'"),
        (["another"], "diagnose takes one run, and 'another' is named besides"),
        (["actor.base_url=http://localhost:1/v1"], "actor.tokenizer"),
        (["--scanner", "nothing"], "'nothing'"),
        (["--scorer", "/no/such/folder"], "--scorer /no/such/folder: "),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, capsys, arguments, message):
    assert main([write(tmp_path / "run", [record(0, ["up"])]), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_trajectories_is_refused(tmp_path, capsys):
    assert main([write(tmp_path / "run", [])]) == 2
    assert "no trajectory yet" in capsys.readouterr().err


def test_a_training_is_diagnosed_from_what_its_steps_have_measured(tmp_path, capsys):
    lines = [
        {"phase": "warm_up", "step": 1, "warm_up/loss": 6.4},
        {"phase": "train", "step": 0, "val/Walk/success": 0.5},
        {
            "phase": "train",
            "step": 1,
            "collapse_first_turn_sample/mi_estimate": 0.73,
            "collapse/valid_thinking_rate": 0.5,
        },
        {"phase": "train", "step": 2, "train/success": 0.1},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"phase": "tr')
    assert main([str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    measured = {"step": 1, "valid_thinking_rate": 0.5, "samples": {FIRST_TURNS: {"mi_estimate": 0.73}}}
    assert (told["scorer"], told["steps"]) == ("the policy itself", [measured])
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "0.730" in printed and "50.0%" in printed and "Scorer: the policy itself" in printed
    assert main([str(tmp_path), "--scorer", "m"]) == 2
    assert "keeps no trajectories" in capsys.readouterr().err


def test_a_training_that_has_measured_nothing_says_what_that_takes(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"phase": "train", "step": 1, "train/success": 0.1}\n')
    assert main([str(tmp_path)]) == 0
    assert "collapse_detection.first_turn_enabled=true" in capsys.readouterr().out
    (tmp_path / "metrics.jsonl").write_text("[1]\n")
    assert main([str(tmp_path)]) == 2
