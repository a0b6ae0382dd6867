"""The Hugging Face backend on a tiny random model: tokens, probabilities, batches, bad input, and a rollout with it."""

import pytest

from ragen.config.loading import load_config
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.backends import Request, Sampling, create_backend
from support.later import hf, torch
from support.random_qwen import CONTEXT, always, tiny_model, tokenizer
from support.rollouts import no_prompts

LENGTHS = (3, 40, 7, 25, 1)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny models are many times slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def request(ids, env_id=0):
    return Request(env_id, 0, "T", [{"role": "user", "content": "?"}], ids)


def requests(lengths=LENGTHS):
    return [request([(7 * place + step) % 400 + 8 for step in range(length)]) for place, length in enumerate(lengths)]


def log_probs_of(model, prompt, ids, temperature=1.0):
    """What a trainer computes: one pass over prompt and reply, without padding."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


# Tokens in, tokens out


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=20),
        Sampling(max_tokens=20, temperature=0.5, top_k=20, top_p=0.8),
        Sampling(max_tokens=20, do_sample=False),
    ],
    ids=["drawn", "drawn from few", "greedy"],
)
def test_log_probabilities_are_those_that_a_trainer_computes_from_the_same_tokens(model, sampling):
    replies = hf.HfBackend(model, tokenizer()).generate(requests(), sampling)
    temperature = 1.0 if sampling.greedy else sampling.temperature
    for asked, reply in zip(requests(), replies, strict=True):
        assert len(reply.token_ids) == len(reply.log_probs) > 0
        expected = log_probs_of(model, asked.prompt_ids, reply.token_ids, temperature)
        assert reply.log_probs == pytest.approx(expected, abs=1e-4)


def test_a_greedy_reply_is_the_likeliest_token_by_token_in_whatever_company(model):
    sampling = Sampling(max_tokens=12, do_sample=False)
    together = hf.HfBackend(model, tokenizer()).generate(requests(), sampling)
    for asked, reply in zip(requests(), together, strict=True):
        ids = list(asked.prompt_ids)
        for token in reply.token_ids:
            with torch.no_grad():
                assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)


def test_a_reply_ends_with_its_end_token_which_its_text_leaves_out():
    end = tokenizer().eos_token_id
    (reply,) = hf.HfBackend(always(tiny_model(), end), tokenizer()).generate(requests([4]), Sampling(max_tokens=9))
    assert (reply.text, reply.token_ids, reply.cut_off) == ("", [end], False)
    assert reply.log_probs == pytest.approx([0.0], abs=1e-6)
    assert reply.usage == {"requests": 1, "prompt_tokens": 4, "completion_tokens": 1}


# Batches


def test_prompts_that_are_alike_are_answered_as_if_each_were_read(model):
    members = [one for one in requests((12, 5)) for _ in range(3)]
    shared, apart = (
        hf.HfBackend(model, tokenizer(), seed=3, share_prompts=share).generate(members, Sampling(max_tokens=6))
        for share in (True, False)
    )
    assert [reply.token_ids for reply in shared] == [reply.token_ids for reply in apart]
    for one, other in zip(shared, apart, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def test_the_same_seed_draws_the_same_and_another_one_something_else(model):
    def draw(seed):
        backend = hf.HfBackend(model, tokenizer(), seed=seed)
        return [[r.token_ids for r in backend.generate(requests(), Sampling(max_tokens=8))] for _ in range(2)]

    first, again, other = draw(1), draw(1), draw(2)
    assert first == again != other
    assert first[0] != first[1]


def test_settings_of_the_models_own_file_change_nothing():
    plain, fussy = tiny_model(), tiny_model()
    fussy.generation_config.update(repetition_penalty=5.0, temperature=0.01, top_k=1, do_sample=True)
    sampling = Sampling(max_tokens=10)
    drawn = [hf.HfBackend(model, tokenizer()).generate(requests(), sampling) for model in (plain, fussy)]
    assert [reply.token_ids for reply in drawn[0]] == [reply.token_ids for reply in drawn[1]]


def test_a_prompt_too_long_for_the_model_is_out_of_context_alone(model):
    replies = hf.HfBackend(model, tokenizer()).generate(requests([3, CONTEXT]), Sampling(max_tokens=2))
    assert replies[0].error is None and len(replies[0].token_ids) > 0
    assert replies[1].out_of_context is not None and replies[1].error is None


# From a configuration


def config(folder, *overrides):
    return load_config(
        "base", ["actor.backend=hf", f"actor.model={folder}", "actor_rollout_ref.rollout.max_model_len=512", *overrides]
    )


# In the loop

GAMES = [
    "es_manager.use_multiprocessing=false",
    "agent_proxy.max_turn=2",
    "actor_rollout_ref.rollout.response_length=8",
    *(f"es_manager.{mode}.{key}" for mode in ("train", "val") for key in ("env_groups=2", "group_size=2")),
    *(f"es_manager.{mode}.env_configs.{key}" for mode in ("train", "val") for key in ("tags=[Bandit]", "n_groups=[2]")),
]


def test_a_training_batch_has_the_probabilities_that_its_trainer_computes(folder):
    settings = config(folder, "agent_proxy.training_tokens=sampled", *GAMES)
    with LLMAgentProxy(settings, create_backend(settings, tokenizer()), tokenizer()) as proxy:
        rollouts = proxy.rollout(no_prompts())
    model = tiny_model()
    for row in range(len(rollouts)):  # what a trainer computes from the training batch is what was sampled with
        ids = rollouts.batch["input_ids"][row][rollouts.batch["attention_mask"][row].bool()].tolist()
        learnt = rollouts.batch["response_mask"][row, 1 - len(ids) :].bool()
        computed = torch.tensor(log_probs_of(model, ids[:1], ids[1:]))[learnt]
        told = rollouts.batch["rollout_log_probs"][row, 1 - len(ids) :][learnt]
        torch.testing.assert_close(computed, told, atol=1e-4, rtol=0)
