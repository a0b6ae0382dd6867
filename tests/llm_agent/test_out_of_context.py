"""A prompt that does not fit the model's context ends its own episode, which counts; everything else goes on."""

import json

import numpy as np
import pytest

from ragen.llm_agent import LLMAgentProxy
from ragen.llm_agent.backends import Backend, Reply, create_tokenizer
from ragen.llm_agent.rollout import command
from support.chat_server import chat_server, fail, say
from support.configurations import composed
from support.rollouts import no_prompts

PAGES = "{env_type: 'support.small_games:Pages', max_actions_per_traj: 9, env_instruction: go, env_config: {%s}}"
SMALL = [
    f"es_manager.{mode}.{key}"
    for mode in ("train", "val")
    for key in ("env_configs.tags=[Pages]", "env_configs.n_groups=[3]", "env_groups=3", "group_size=2")
]
SMALL += ["es_manager.use_multiprocessing=false", "agent_proxy.max_turn=6", "agent_proxy.max_actions_per_turn=1"]
GO = "<think>on</think><answer>go</answer>"
LONG = (2, 3)  # of six environments, the members of the group whose episode has the long page


class Goes(Backend):
    """Answers without tokens, like most servers; refuses a prompt with the long page if it is to."""

    def __init__(self, refuses=False):
        self.refuses, self.asked = refuses, []

    def generate(self, requests, sampling):
        self.asked += [request.env_id for request in requests]
        return [self._reply(str(request.messages)) for request in requests]

    def _reply(self, chat):
        return Reply("", out_of_context="too long") if self.refuses and "and so on" in chat else Reply(GO)


def config_of(page, *overrides):
    long = "" if page is None else f"seed: 124, page: {page}"
    limit = "actor_rollout_ref.rollout.max_model_len=2000"
    return composed(
        "base", [*SMALL, limit, "seed.train=123", "seed.val=123", f"+custom_envs.Pages={PAGES % long}", *overrides]
    )


HOW = {
    "lockstep": [],
    "shards": [
        "agent_proxy.use_parallel_rollout=true",
        "agent_proxy.parallel_n_jobs=3",
        "agent_proxy.parallel_backend=threading",
    ],
    "turns": ["agent_proxy.context_window_mode=limited_multi_turn", "agent_proxy.max_context_window=2"],
}


def rollout(page, backend, how, *overrides):
    config = config_of(page, *HOW[how], *overrides)
    with LLMAgentProxy(config, backend, create_tokenizer(config)) as proxy:
        return proxy.rollout(no_prompts()), proxy.rollout_states


@pytest.mark.parametrize(("page", "refuses"), [(0, True), (2, False)], ids=["refused by the model", "configured limit"])
@pytest.mark.parametrize("how", HOW)
def test_only_its_own_episode_is_over_truncated_and_counted(how, page, refuses):
    limit = ["actor_rollout_ref.rollout.max_model_len=null"] if refuses else []
    _, plain = rollout(None, Goes(), how)
    backend = Goes(refuses)
    batch, states = rollout(page, backend, how, *limit)
    assert [state for state in states if state["env_id"] not in LONG] == [s for s in plain if s["env_id"] not in LONG]
    for state in (states[env_id] for env_id in LONG):
        assert state["out_of_context"] and "env_error" not in state
        assert (len(state["history"]) - 1, state["metrics"]["Pages/success"]) == (page, 0.0)
        assert backend.asked.count(state["env_id"]) == page + refuses
    assert batch.meta_info["metrics"]["Pages/success"] == pytest.approx(4 / 6)
    assert batch.meta_info["metrics"]["Pages/out_of_context"] == pytest.approx(2 / 6)
    of_long = np.isin(batch.non_tensor_batch["env_ids"].astype(int), LONG)
    assert of_long.any() and bool(batch.batch["loss_mask"][of_long].any()) == (page > 0)


def test_an_evaluation_counts_it_and_asks_nothing_again(tmp_path):
    def script(prompt, tries):
        return fail(400, "context_length_exceeded") if "page 2 of 124" in prompt else say(GO)

    with chat_server(script) as server:
        words = ["--config-name", "evaluate_api_llm", f"+custom_envs.Pages={PAGES % ''}", *SMALL, "seed.val=123"]
        words += [f"actor.base_url={server.url}", "actor.model=tiny", f"output_dir={tmp_path}"]
        assert command.main(words) == 0
        asked = len(server.bodies)
        assert command.main(words) == 0 and len(server.bodies) == asked == 4 * 4 + 2 * 3
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [(row["success"], "out_of_context" in row, "error" in row) for row in rows] == [
        (row["env_id"] not in LONG, row["env_id"] in LONG, False) for row in rows
    ]
    (tag,) = json.loads((tmp_path / "results.json").read_text())["tags"]
    assert (tag["judged"], tag["success"], tag["missing_replies"]) == (6, pytest.approx(4 / 6), 0)
