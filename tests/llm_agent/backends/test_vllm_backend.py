"""The vLLM backend against a stand-in for the package, with the names that vLLM documents: it needs a GPU itself."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from ragen.config.loading import load_config
from ragen.llm_agent.backends import Request, Sampling, create_backend
from ragen.llm_agent.tokenizer import LightTokenizer
from support.later import shipped

END = LightTokenizer().eos_token_id
SAID = "<answer>Up</answer>"


class StandIn(ModuleType):
    """What of ``vllm`` is used: ``LLM``, ``SamplingParams``, and the outputs' fields."""

    def __init__(self):
        super().__init__("vllm")
        self.__spec__ = ModuleSpec("vllm", None)
        self.engines = []
        stand_in = self

        class SamplingParams:
            def __init__(self, *, max_tokens, temperature, top_p, top_k, logprobs, stop_token_ids, skip_special_tokens):
                if top_k == 0 or top_k < -1:
                    raise ValueError(f"top_k must be -1 (disable), or at least 1, got {top_k}.")
                given = {name: value for name, value in locals().items() if name != "self"}
                self.__dict__.update(given)

        class LLM:
            reason = "stop"

            def __init__(self, model, **options):
                if options.get("max_model_len", 0) > 2048:
                    raise ValueError("User-specified max_model_len (3600) is greater than the derived max_model_len")
                self.model, self.options, self.calls = model, options, []
                stand_in.engines.append(self)

            def generate(self, prompts, sampling_params, use_tqdm=True):
                self.calls.append((prompts, sampling_params, use_tqdm))
                return [self.output(prompt, sampling_params) for prompt in prompts]

            def output(self, prompt, params):
                ids = [*shipped().encode(SAID, add_special_tokens=False), END]
                steps = [{token: SimpleNamespace(logprob=-0.5 * step)} for step, token in enumerate(ids)]
                log_probs = None if params.logprobs is None else steps
                told = {"logprobs": log_probs, "finish_reason": self.reason}
                completion = SimpleNamespace(text=SAID, token_ids=tuple(ids), **told)
                return SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[completion])

        self.SamplingParams, self.LLM = SamplingParams, LLM


@pytest.fixture
def vllm(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    return stand_in


def config(*overrides):
    return load_config(
        "base", ["actor.backend=vllm", "actor.model=org/tiny", "actor_rollout_ref.rollout.max_model_len=64", *overrides]
    )


def requests(*lengths):
    return [Request(place, 0, "T", [], list(range(length))) for place, length in enumerate(lengths)]


def test_the_engine_gets_the_options_of_rollout_that_are_there_and_those_of_actor(vllm):
    rollout = "+actor_rollout_ref.rollout"
    overrides = [
        f"{rollout}.tensor_model_parallel_size=2",
        f"{rollout}.gpu_memory_utilization=0.7",
        f"{rollout}.enforce_eager=true",
        f"{rollout}.dtype=bfloat16",
        f"{rollout}.load_format=dummy",
        "+actor.vllm.quantization=fp8",
    ]
    create_backend(config(*overrides), shipped())
    (engine,) = vllm.engines
    assert engine.model == "org/tiny"
    assert engine.options == {
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.7,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 64,
        "trust_remote_code": False,
        "logprobs_mode": "processed_logprobs",
        "quantization": "fp8",
    }


def test_tokens_go_in_and_tokens_with_probabilities_come_out(vllm):
    backend = create_backend(config(), shipped())
    sampling = Sampling(max_tokens=20, temperature=0.5, top_p=0.9, top_k=40)
    replies = backend.generate(requests(3, 5), sampling)
    ((prompts, params, shown),) = vllm.engines[0].calls
    assert prompts == [{"prompt_token_ids": [0, 1, 2]}, {"prompt_token_ids": [0, 1, 2, 3, 4]}] and not shown
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (20, 0.5, 0.9, 40)
    assert params.stop_token_ids == [END]
    for reply, length in zip(replies, (3, 5), strict=True):
        assert reply.text == SAID and shipped().decode(reply.token_ids, skip_special_tokens=True) == SAID
        assert reply.log_probs == [-0.5 * step for step in range(len(reply.token_ids))]
        assert reply.usage == {"requests": 1, "prompt_tokens": length, "completion_tokens": len(reply.token_ids)}


def test_a_prompt_too_long_is_out_of_context_alone(vllm):
    backend = create_backend(config(), shipped())
    first, second, third = backend.generate(requests(3, 60, 4), Sampling(max_tokens=20))
    assert (first.text, third.text) == (SAID, SAID)
    assert second.out_of_context is not None and second.error is None
    assert backend.generate(requests(60), Sampling(max_tokens=20))[0].out_of_context and len(vllm.engines[0].calls) == 1
