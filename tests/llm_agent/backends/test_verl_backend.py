"""The actor of verl's workers against a stand-in worker group that insists on batches that its workers can share."""

import pytest

from ragen.config.loading import load_config
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends.batch import replies_of
from ragen.llm_agent.backends.verl import VerlActor
from ragen.llm_agent.batches.dataproto import left_padded, object_array
from ragen.llm_agent.tokenizer import LightTokenizer
from support.later import shipped, torch
from support.rollouts import batch_of, no_prompts

PAD, END = LightTokenizer().pad_token_id, LightTokenizer().eos_token_id
WIDTH = 40
GAMES = [
    "es_manager.use_multiprocessing=false",
    "agent_proxy.max_turn=2",
    *(f"es_manager.{mode}.{key}" for mode in ("train", "val") for key in ("env_groups=3", "group_size=1")),
    *(f"es_manager.{mode}.env_configs.{key}" for mode in ("train", "val") for key in ("tags=[Bandit]", "n_groups=[3]")),
]


class Workers:
    """Answers as verl's rollout workers do: fixed width, padded on the right; says how long each prompt was."""

    def __init__(self, world_size=4, log_probs=True):
        self.world_size, self.log_probs, self.batches = world_size, log_probs, []

    def generate_sequences(self, prompts):
        assert len(prompts) % self.world_size == 0, "a worker group cannot split this"
        assert set(prompts.batch.keys()) == {"input_ids", "attention_mask", "position_ids"}
        self.batches.append(prompts)
        lengths = prompts.batch["attention_mask"].sum(-1).tolist()
        rows = [[*shipped().encode(f"<answer>{n}</answer>", add_special_tokens=False), END] for n in lengths]
        ids = torch.tensor([row + [PAD] * (WIDTH - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (WIDTH - len(row)) for row in rows])
        tensors = {"responses": ids, "attention_mask": torch.cat([prompts.batch["attention_mask"], mask], 1)}
        if self.log_probs:
            tensors["rollout_log_probs"] = -torch.arange(float(WIDTH)).repeat(len(rows), 1)
        return batch_of(tensors, meta_info={"timing": 1})


def answered(workers, *lengths):
    """The replies of workers to prompts of these lengths."""
    tensors = left_padded([[9] * length for length in lengths], PAD)
    columns = {"env_ids": object_array(range(len(lengths))), "messages_list": object_array([[] for _ in lengths])}
    prompts = batch_of(tensors, {"temperature": 0.3}, **columns)
    return replies_of(VerlActor(workers, shipped()).generate_sequences(prompts), shipped(), len(lengths))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_a_batch_is_padded_to_the_workers_and_answered_in_order(count):
    workers = Workers(world_size=4)
    lengths = [3 + place for place in range(count)]
    assert [reply.text for reply in answered(workers, *lengths)] == [f"<answer>{length}</answer>" for length in lengths]
    assert len(workers.batches[0]) == -(-count // 4) * 4
    told = {"eos_token_id": END, "pad_token_id": PAD, "recompute_log_prob": False, "temperature": 0.3}
    assert workers.batches[0].meta_info == told


def test_replies_have_their_own_tokens_and_probabilities_without_padding():
    (reply,) = answered(Workers(), 5)
    assert reply.token_ids[-1] == END and PAD not in reply.token_ids and not reply.cut_off
    assert list(reply.log_probs) == [-float(step) for step in range(len(reply.token_ids))]
    (reply,) = answered(Workers(log_probs=False), 5)
    assert reply.log_probs is None


def test_a_trainers_worker_group_is_padded_too_and_gets_the_trainers_meta_info():
    workers = Workers(world_size=2)
    with LLMAgentProxy(load_config("base", GAMES), workers, shipped()) as proxy:
        rollouts = proxy.rollout(no_prompts(validate=True, eos_token_id=7), val=True)
    assert len(rollouts) == 3 and len(workers.batches[0]) == 4
    assert workers.batches[0].meta_info["validate"] is True
    assert workers.batches[0].meta_info["eos_token_id"] == 7
    assert list(workers.batches[0].non_tensor_batch["tags"]) == ["Bandit"] * 4
