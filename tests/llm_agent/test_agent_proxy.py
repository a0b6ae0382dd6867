"""The rollout loop and its command: what is played, what is written, and what bad input says."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from ragen.errors import BackendError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply
from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.actor import BackendActor
from support.configurations import composed
from support.later import shipped
from support.rollouts import batch_of, no_prompts

ROOT = Path(__file__).resolve().parents[2]
TAGS = ["SimpleSokoban", "Countdown", "Bandit"]
SMALL = [
    f"es_manager.{mode}.{key}"
    for mode in ("train", "val")
    for key in (f"env_configs.tags=[{','.join(TAGS)}]", "env_configs.n_groups=[1,1,1]", "env_groups=3", "group_size=2")
]


def small_config(*overrides, multiprocessing="false"):
    """Three tags, one group of two each, two turns."""
    turns = "agent_proxy.max_turn=2"
    return composed("base", [*SMALL, turns, f"es_manager.use_multiprocessing={multiprocessing}", *overrides])


def play(config, actor, val=False, meta_info=None, **options):
    with LLMAgentProxy(config, actor, shipped()) as proxy:
        return proxy.rollout(no_prompts(**meta_info or {}), val=val, **options)


class Recorder(Backend):
    """A backend that says the same to everyone, and remembers what it was asked."""

    takes_tokens = True

    def __init__(self, reply=None):
        self.reply = reply or (lambda request: Reply("<think>x</think><answer>Up</answer>"))
        self.batches = []

    def generate(self, requests, sampling):
        self.batches.append((list(requests), sampling))
        return [self.reply(request) for request in requests]

    def close(self):
        pass


def prompts(count):
    chat = [{"role": "user", "content": "?"}]
    ids = object_array(range(count))
    columns = {"env_ids": ids, "group_ids": ids, "messages_list": object_array([chat] * count)}
    return batch_of(**columns)


# The loop


def test_requests_name_environment_turn_and_tag_and_carry_chat_and_tokens():
    backend = Recorder()
    play(small_config(), backend)
    (first, _), (second, _) = backend.batches
    assert [(r.env_id, r.turn, r.tag) for r in first] == [(i, 0, TAGS[i // 2]) for i in range(6)]
    assert {(r.env_id, r.turn, r.tag) for r in second} >= {(0, 1, "SimpleSokoban"), (1, 1, "SimpleSokoban")}
    assert first[0].messages[-1]["role"] == "user"
    text = shipped().decode(first[0].prompt_ids)
    assert text.startswith("<|im_start|>system") and first[0].messages[-1]["content"] in text


def test_validation_plays_its_own_environments_with_its_own_sampling():
    backend = Recorder()
    config = small_config("es_manager.val.group_size=1", "actor_rollout_ref.rollout.val_kwargs.temperature=0.25")
    assert len(play(config, backend, val=True, meta_info={"validate": True})) == 3
    assert backend.batches[0][1].temperature == 0.25
    play(config, backend, meta_info={"do_sample": False})
    assert (backend.batches[-1][1].temperature, backend.batches[-1][1].do_sample) == (1.0, False)


def test_an_actor_with_generate_sequences_is_used_as_it_is():
    class Actor:
        def generate_sequences(self, lm_inputs):
            assert lm_inputs.meta_info["eos_token_id"] == 7
            texts = ["<think>a</think><answer>1</answer>"] * len(lm_inputs)
            outputs = no_prompts()
            outputs.non_tensor_batch = {**lm_inputs.non_tensor_batch, "response_texts": texts}
            return outputs

    assert len(play(small_config(), Actor(), meta_info={"eos_token_id": 7})) == 6


def test_a_request_without_a_reply_ends_its_own_trajectory_and_no_other():
    answered = Reply("<think>x</think><answer>Up</answer>")
    backend = Recorder(lambda request: Reply("", error="server down") if request.env_id == 1 else answered)
    with LLMAgentProxy(small_config(), backend, shipped()) as proxy:
        proxy.rollout(no_prompts())
        assert proxy.failures == {1: "server down"}
        states = proxy.train_es_manager.get_rollout_states()
    assert [request.env_id for request in backend.batches[1][0]][:1] == [0]
    assert [len(state["history"]) for state in states[:2]] == [3, 1]


@pytest.mark.parametrize(
    "returned", [None, "Up", [Reply("a")], (Reply("a"),) * 3, [Reply("a"), "Up"], {0: "a", 1: "b"}], ids=repr
)
def test_what_is_no_list_of_a_reply_to_each_request_is_an_error_of_the_policy(returned):
    class Policy(Recorder):
        def generate(self, requests, sampling):
            return returned

    with pytest.raises(BackendError, match=r"Policy\.generate"):
        BackendActor(Policy(), {}, shipped()).generate_sequences(prompts(2))


FAILING = (
    "es_manager.val.env_configs.tags=[Bandit,Broken]",
    "es_manager.val.env_configs.n_groups=[1,1]",
    "es_manager.val.env_groups=2",
    "+custom_envs.Broken={env_type: 'support.check_cases:RaisesInReset', max_actions_per_traj: 3, env_instruction: Go}",
    "es_manager.crash_report_dir=null",
)


def test_a_model_is_not_asked_about_an_environment_that_failed_in_its_reset():
    actor, over = Recorder(), []
    with LLMAgentProxy(small_config(*FAILING), actor, shipped()) as proxy:
        states = proxy.play({}, val=True, on_over=over.extend)
    asked = {request.tag for batch, _ in actor.batches for request in batch}
    assert asked == {"Bandit"}
    broken = [state for state in states if state["tag"] == "Broken"]
    assert [state["env_error"].partition(":")[0] for state in broken] == ["KeyError"] * 2
    assert [turn.get("llm_response") for turn in broken[0]["history"]] == ["", None]
    assert sorted(state["env_id"] for state in over) == [state["env_id"] for state in states]


def test_a_training_batch_has_a_sampled_reply_in_the_row_of_an_environment_that_failed_too():
    actor = Recorder()
    batch = play(small_config(*FAILING), actor, val=True)
    assert len(batch) == 4 and {request.tag for batch, _ in actor.batches for request in batch} == {"Bandit", "Broken"}


# The command


def run_command(*overrides, config="base", folder):
    arguments = ["--config-name", config, *SMALL, "es_manager.use_multiprocessing=false", f"output_dir={folder}"]
    return command.main([*arguments, *overrides])


def test_the_command_writes_a_line_per_trajectory(tmp_path):
    assert run_command(folder=tmp_path) == 0
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text("utf-8").splitlines()]
    assert [line["env_id"] for line in lines] == list(range(6))
    assert [line["tag"] for line in lines] == [tag for tag in TAGS for _ in range(2)]
    assert [line["seed"] for line in lines] == [123, 123, 124, 124, 125, 125]
    for line in lines:
        replies = [message for message in line["messages"] if message["role"] == "assistant"]
        assert len(replies) == len(line["rewards"]) == len(line["infos"])


class Wanderer:
    """Works in a folder of its own, as some simulators do, and leaves it behind."""

    def reset(self, seed=None, mode=None):
        self.folder = tempfile.mkdtemp()
        os.chdir(self.folder)
        return "go"

    def step(self, action):
        return "went", 1.0, True, {"success": True}

    def render(self, mode=None):
        return "here"

    def close(self):
        os.rmdir(self.folder)


def test_files_of_a_run_stay_in_its_folder_though_an_environment_changes_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "wandering.yaml").write_text(
        "defaults: [base, _self_]\n"
        "custom_envs:\n"
        f"  Wanderer: {{env_type: '{__name__}:Wanderer', max_actions_per_traj: 1, env_instruction: Go.}}\n"
        "es_manager: {val: {env_groups: 1, group_size: 1, env_configs: {tags: [Wanderer], n_groups: [1]}}}\n"
        "output_dir: out\nreport: true\nagent_proxy: {max_turn: 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert command.main(["--config-name", "./wandering", "es_manager.use_multiprocessing=false"]) == 0
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written >= {"rollouts.jsonl", "results.json", "report.html", "run.json", "usage.json"}


BAD_INPUT = [
    (["actor.backend=gpt"], "'actor.backend' is 'gpt'"),
    (["agent_proxy.max_turn=${nowhere}"], "nowhere"),
    (["custom_envs.SimpleSokoban.env_config.num_boxes=0"], "num_boxes"),
    (["actor.tokenizer=/no/such/folder"], "actor.tokenizer"),
    (["actor.scripted.random=2"], "actor.scripted.random = 2"),
    (["es_manager.use_multiprocessing=sometimes"], "sometimes"),
]


@pytest.mark.parametrize(("overrides", "said"), BAD_INPUT, ids=[case[0][0] for case in BAD_INPUT])
def test_bad_input_is_one_sentence_and_exit_code_2_before_anything_is_built(overrides, said, tmp_path, capsys):
    assert run_command(*overrides, folder=tmp_path / "out") == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1
    assert said in err and "Traceback" not in err
    assert out == "" and not (tmp_path / "out").exists()


TELLING = """
from ragen.llm_agent.backends.scripted import ScriptedBackend

class Telling(ScriptedBackend):
    def generate(self, requests, sampling):
        print("asked", flush=True)
        return super().generate(requests, sampling)
"""


def test_a_real_ctrl_c_leaves_no_process_behind(tmp_path):
    """SIGINT to the whole foreground group, as a terminal sends it, while environments live in worker processes."""
    (tmp_path / "telling.py").write_text(TELLING)
    endless = ["agent_proxy.max_turn=100000", "agent_proxy.max_context_window=1", "actor.scripted.malformed=1"]
    others = ["actor.scripted.random=0", "actor.backend='telling:Telling'", f"output_dir={tmp_path / 'out'}"]
    arguments = [sys.executable, "-m", "ragen.llm_agent.agent_proxy", *endless, *others, "es_manager.max_workers=2"]
    arguments.append("es_manager.use_multiprocessing=true")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    with subprocess.Popen(
        arguments, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(3)] == ["asked\n"] * 3
            family = psutil.Process(process.pid).children(recursive=True)
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors.splitlines()[-2].startswith("interrupted; saved in") and "Traceback" not in errors
    assert len(family) >= 2 and psutil.wait_procs(family, timeout=60)[1] == []
