"""A plug-in for verl, for tests alone: its stock trainer on a machine without an accelerator.

It gives verl a platform ``cpu`` (processes talk over gloo; the "GPU" that verl reserves is a label that Ray is told
of), allows the FSDP engine there, and serves rollouts from a Hugging Face model in a Ray actor (rollout name ``hf``).
verl loads it with ``VERL_USE_EXTERNAL_MODULES=support.verl_cpu_platform`` and takes it with ``VERL_PLATFORM=cpu``.
"""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplicaRegistry

GATHER = 0.02  # seconds in which requests come together into one batch


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _zero(*_: Any, **__: Any) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """``torch.cpu`` with what verl calls on ``torch.cuda`` besides."""
    module = types.ModuleType("cpu_device_module")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    counters = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    silent = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_device")
    module.__dict__.update(dict.fromkeys(counters, _zero))
    module.__dict__.update(dict.fromkeys((*silent, "synchronize"), _nothing))
    module.__dict__.update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: "cpu",
        mem_get_info=lambda *_: (0, 0),
        get_device_name=lambda *_: "CPU",
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
    )
    return module


_module = _device_module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """No accelerator, and the answers that verl expects of one."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _module)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never found by itself, only asked for

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = _nothing
    cudart = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"  # what ray.init(num_gpus=1) claims to have

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield


class HfServer:
    """Answers prompts with ``generate``; what arrives within ``GATHER`` seconds is one batch."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.step = 0
        self.waiting: list[tuple[list[int], dict[str, Any], asyncio.Future[Any]]] = []
        self.task: asyncio.Task[None] | None = None

    async def generate(self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), sampling_params, future))
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self.serve())
        return await future

    async def serve(self) -> None:
        while self.waiting:
            await asyncio.sleep(GATHER)
            batch, self.waiting = self.waiting, []
            outputs = await asyncio.to_thread(self.answer, batch)
            for (_, _, future), output in zip(batch, outputs, strict=True):
                future.set_result(output)

    def answer(self, batch: list[Any]) -> list[Any]:
        if not all("seed" in params for _, params, _ in batch):
            return self.draw(batch)
        drawn = []
        for item in batch:  # alone, so that a reply depends on nothing but its prompt and its seed
            torch.manual_seed(item[1]["seed"])
            drawn += self.draw([item])
        return drawn

    @torch.no_grad()
    def draw(self, batch: list[Any]) -> list[Any]:
        prompts = [torch.tensor(prompt) for prompt, _, _ in batch]
        longest = max(len(prompt) for prompt in prompts)
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        ids = torch.stack([torch.nn.functional.pad(p, (longest - len(p), 0), value=pad) for p in prompts])
        places = torch.arange(longest)
        attention = torch.stack([(places >= longest - len(p)).long() for p in prompts])
        output = self.model.generate(
            input_ids=ids,
            attention_mask=attention,
            max_new_tokens=max(params["max_tokens"] for _, params, _ in batch),
            do_sample=True,
            top_k=0,
            eos_token_id=end,
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_logits=True,
        )
        drawn = output.sequences[:, longest:]
        log_probs = torch.log_softmax(torch.stack(output.logits, 1).float(), -1).gather(-1, drawn[..., None])[..., 0]
        return [
            self.output(row, probs, item[1]["max_tokens"], end)
            for row, probs, item in zip(drawn, log_probs, batch, strict=True)
        ]

    def output(self, row: Any, log_probs: Any, most: int, end: int) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        tokens = row.tolist()[:most]
        tokens = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        told = {"global_steps": self.step}
        known = log_probs[: len(tokens)].tolist()
        return TokenOutput(token_ids=tokens, log_probs=known, stop_reason="completed", extra_fields=told)

    async def load(self, weights: list[tuple[str, Any]], step: int | None) -> None:
        result = self.model.load_state_dict(dict(weights), strict=False)
        assert not result.unexpected_keys, result.unexpected_keys
        self.step = self.step if step is None else step

    async def silently(self, *_: Any, **__: Any) -> None:
        return None

    wake_up = sleep = abort_all_requests = resume_generation = silently
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = silently

    async def set_global_steps(self, step: int) -> None:
        self.step = step


def server_name(rank: int) -> str:
    return f"hf_server_{rank}"


def _load_replica() -> type:
    import ray
    from verl.workers.rollout.replica import RolloutReplica

    class HfReplica(RolloutReplica):
        async def launch_servers(self) -> None:
            name = server_name(self.replica_rank)
            options = {"name": name, "num_cpus": 0, "max_concurrency": self.max_concurrency}
            server = ray.remote(HfServer).options(**options).remote(self.model_config.path)
            await server.silently.remote()
            self.servers, self._server_handle, self._server_address = [server], server, name

    return HfReplica


class HfAdapter(BaseRollout):
    """In the training process: hands the weights to the server, through Ray."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, *_: Any, **__: Any) -> None:
        super().__init__(config, model_config, device_mesh)

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        import ray

        copies = [(name, tensor.detach().float().cpu().clone()) for name, tensor in weights]
        if int(os.environ["RANK"]) == 0:
            await ray.get_actor(server_name(0)).load.remote(copies, global_steps)


def _allow_fsdp() -> None:
    from torch.distributed.fsdp import OffloadPolicy
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    transformer_impl.CPUOffloadPolicy = lambda pin_memory: OffloadPolicy()  # a reference is in the CPU's memory already
    if "cpu" not in EngineRegistry._engines.get("language_model", {}).get("fsdp", {}):
        register = EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
        register(FSDPEngineWithLMHead)


def _talk_over_gloo() -> None:
    """verl asks for ``cpu:gloo,<device>:<backend>``, which names the cpu twice here."""
    from verl.utils import distributed

    stock = distributed.initialize_global_process_group_ray
    distributed.initialize_global_process_group_ray = lambda timeout_second=None, backend=None: stock(
        timeout_second, backend or "gloo"
    )


RolloutReplicaRegistry.register("hf", _load_replica)
_ROLLOUT_REGISTRY[("hf", "async")] = "support.verl_cpu_platform.HfAdapter"
if os.environ.get("VERL_PLATFORM") == "cpu":
    _talk_over_gloo()
    _allow_fsdp()
