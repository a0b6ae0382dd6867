"""Every key of a configuration, with its type, default and meaning; ``docs/reference/configuration.md`` is this file.

A key that is null has its default, unless null is one of its values. Our own sections take no other keys. The sections
that are shared with verl (:class:`Open`), or with RAGEN's manager (:class:`Managed`), keep foreign keys as they are,
but none that differs from one of ours by a single letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError
from rapidfuzz.distance import OSA

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A section of a configuration; other keys are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
        validate_assignment=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if hasattr(given, "__dict__") and not isinstance(given, Mapping | BaseModel | type):
            given = vars(given)
        if not isinstance(given, Mapping):
            return given
        kept = {}
        for name, value in given.items():
            field = cls.model_fields.get(name)
            if field and isinstance(value, str) and value == "???":
                raise PydanticCustomError("required", "", {"name": name})
            if not field and any(OSA.distance(str(name), each) < 2 for each in cls._near_names()):
                raise PydanticCustomError("extra_forbidden", "", {"name": name})
            if value is not None or field is None or NoneType in get_args(field.annotation):
                kept[name] = value
        return kept

    @classmethod
    def _near_names(cls) -> Iterable[str]:
        """The names of which an unknown key may be a misspelling."""
        return ()


class Open(Section):
    """A section that also has keys of verl's or RAGEN's trainers, which only these read."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def _near_names(cls) -> Iterable[str]:
        return cls.model_fields


class Managed(Open):
    """A section of the environment manager, in which RAGEN's forks and older programs have keys of their own.

    These are logged and ignored, unless they look like one of any of its sections.
    """

    @classmethod
    def _near_names(cls) -> Iterable[str]:
        return {*cls.model_fields, *EsManager.model_fields, *Mode.model_fields}


# Models


class Scripted(Section):
    """A policy that needs no model: it plays well, apart from the shares below."""

    malformed: Share = 0.0
    """Share of replies that cannot be parsed."""
    random: Share = 0.0
    """Share of replies that are well-formed but random."""
    seed: int = 0
    """Seed of these draws."""


class HuggingFace(Section):
    """A Hugging Face model in this process."""

    device: str | None = None
    """Such as cuda:0 or cpu; null: a GPU if available."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    """auto, float32, bfloat16 or float16; null: bfloat16 on a GPU, else float32."""
    batch_size: Count = 64
    """Maximum number of prompts per batch."""
    batch_tokens: Count = 131_072
    """Maximum number of tokens per batch, including replies and padding."""
    seed: int | None = None
    """For sampling; null: torch's global generator."""
    share_prompts: bool = False
    """true: equal prompts, such as those of a group, are processed once; not for every model."""


class Price(Section):
    """Dollars per million tokens, to compute costs."""

    prompt: Amount | None = None
    """Of prompts."""
    completion: Amount | None = None
    """Of replies."""


class OpenAI(Section):
    """A model behind an OpenAI-compatible server. API keys come from the environment alone."""

    api_key_env: str | None = "OPENAI_API_KEY"
    """The environment variable with the API key; local servers may need none."""
    max_concurrency: Count = 64
    """Maximum number of concurrent requests."""
    timeout: Seconds = 120.0
    """Seconds per attempt of a request."""
    max_retries: Natural = 5
    """Retries by the openai client after 429, 5xx, time-outs, lost connections, unreadable answers."""
    backoff: Amount = 0.5
    """Seconds before the first retry; the next ones grow from there."""
    grace: Amount = 10.0
    """Seconds to wait for pending replies when a run is stopped."""
    check_model: bool = True
    """Whether to reject a model that the server does not list."""
    price: Price = Price()
    """Dollars per million tokens, to compute costs."""
    request: dict[str, Any] = {}
    """Request fields to add or replace, such as {seed: 1}; null removes one."""


class Actor(Section):
    """The model that answers prompts. A backend class of the user's own may have further keys here."""

    model_config = ConfigDict(extra="allow")

    backend: str = "scripted"
    """scripted (needs no model), hf, vllm, openai, or a class of your own, "package.module:Class"."""
    model: str | None = None
    """hf, vllm: a folder or hub name, null: model_path; openai: the server's name, null: its only model."""
    base_url: str | None = None
    """openai: the server, such as http://localhost:8000/v1; null: OpenAI's own."""
    tokenizer: str | None = None
    """A folder or hub name; null: the model's own with hf and vllm, else the package's small ChatML tokenizer."""
    scripted: Scripted = Scripted()
    hf: HuggingFace = HuggingFace()
    vllm: dict[str, Any] = {}
    """Any further arguments of vllm.LLM besides those from actor_rollout_ref.rollout."""
    openai: OpenAI = OpenAI()

    @model_validator(mode="after")
    def _no_further_keys(self) -> Actor:
        if ":" not in self.backend:
            for name in self.model_extra or ():
                raise PydanticCustomError("extra_forbidden", "", {"name": name})
        return self


# Rollouts


class Filters(Open):
    """Filters of groups; those of agent_proxy take precedence over those of actor_rollout_ref.rollout."""

    rollout_filter_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the groups to train on; null: all. The filter of 2025 (arXiv:2504.20073)."""
    rollout_filter_type: Literal["std", "mean", "std_rev", "mean_rev", "largest", "smallest"] | None = None
    """With ratio: the largest std (the default) or mean of rewards, or the smallest (std_rev, mean_rev); with strategy:
    whether the largest (the default) or the smallest rank first."""
    rollout_filter_strategy: Literal["top_p", "top_k", "top_k_abs"] | None = None
    """RAGEN-2 (arXiv:2604.06268): groups that add up to a share of the sum, a share of all groups, or a number."""
    rollout_filter_value: Amount | None = None
    """The strategy's number (1)."""
    rollout_filter_metric: Literal["reward_variance", "reward", "length", "entropy", "entropy_variance"] | None = None
    """Measure that ranks groups: reward_variance (the default), reward, length, entropy or entropy_variance."""
    rollout_filter_include_zero: bool | None = None
    """Whether groups with measure 0 may be chosen (true)."""
    rollout_filter_top_p_prob_mode: Literal["linear"] | None = None
    """RAGEN's rule for top_p; only linear is supported."""
    rollout_filter_selection_eps: Annotated[float, Field(ge=0.01, le=0.01)] | None = None
    """RAGEN's tolerance of top_p's share; always 0.01 here."""
    rollout_filter_empty_stop_steps: Natural | None = None
    """RAGEN's; no training stops early here."""


class RewardNormalization(Section):
    """Normalization of scores."""

    grouping: Literal["state", "batch", "inductive"] = "state"
    """Trajectories that are normalized together."""
    method: Literal["identity", "mean_std", "mean", "asym_clip"] = "identity"
    """Normalization of scores."""


class AgentProxy(Filters):
    """The rollout: turns, prompts, and rows for training."""

    model_config = ConfigDict(extra="forbid")

    max_turn: Count = 5
    """Maximum number of turns per episode."""
    action_sep: Annotated[str, Field(pattern=r"\S")] = "||"
    """Separates actions of a reply."""
    max_actions_per_turn: Count | None = None
    """Further actions of a reply are dropped; null: none are."""
    enable_think: bool = True
    """Whether replies think before they answer."""
    max_context_window: int = -1
    """Number of turns shown in a prompt; -1: all."""
    context_window_mode: Literal["full", "limited_multi_turn", "single_turn"] = "full"
    """full: one row per trajectory; limited_multi_turn, single_turn: one row per turn, whose prompt shows the latest
    turns as messages, or summarized in its single user message."""
    prompts: str | None = None
    """A file of prompts, as `python -m ragen.llm_agent.prompting` writes; null: the built-in ones."""
    system_prompt: str | None = None
    """null: that of the prompts; empty: none."""
    use_parallel_rollout: bool = False
    """true: joblib's workers play shards of the environments; see base-parallel.yaml."""
    parallel_backend: Literal["loky", "threading"] = "loky"
    """joblib's backend: loky (processes) or threading."""
    parallel_n_jobs: int = -1
    """Number of workers; -1: as many as processors."""
    use_turn_scores: bool = False
    """true: each turn's reward at the end of that turn; false: their sum at the end."""
    training_tokens: Literal["text", "sampled"] = "text"
    """text: tokenized chats, as in RAGEN; sampled: exactly the tokens the model saw and sampled."""
    batch_adjust_mode: str | None = None
    """RAGEN's; no effect here."""
    reward_normalization: RewardNormalization = RewardNormalization()


class CollapseDetection(Section):
    """Measures during training whether reasoning depends on prompts."""

    first_turn_enabled: bool = False
    """Of first turns."""
    multi_turn_enabled: bool = False
    """Of all turns."""
    compute_freq: Count = 10
    """Steps between two measurements; the first step is measured too."""
    num_samples: Count | Literal["all"] = "all"
    """Maximum number of pairs of prompt and thought in a sample, or all."""
    std_eps: Amount = 1e-3
    """Added to the standard deviation by which a z-score is divided."""
    ema_decay: Share = 0.9
    """Weight of the previous value in the moving averages."""
    micro_batch_size: int | None = None
    """RAGEN's; no effect here, where it depends on the length of thoughts."""


class Limits(Section):
    """Stops a run cleanly, to be resumed later (resume: true)."""

    cost: Seconds | None = None
    """Dollars, over all runs in the output_dir; needs actor.openai.price."""
    tokens: Seconds | None = None
    """Tokens of prompts and replies, over all runs in the output_dir."""
    minutes: Seconds | None = None
    """Minutes of one run."""


# Environments


class Seeds(Section):
    """The first group's seed; each further group's is one higher."""

    train: Natural | None = None
    """Of training; increases by env_groups at every reset."""
    val: Natural | None = None
    """Of validation; the same at every one."""


class EnvConfigs(Managed):
    """The environments of a mode."""

    tags: list[str]
    """Keys of custom_envs."""
    n_groups: list[Count] | None = None
    """Groups of each tag; the sum is env_groups, and a single tag has all of them; null: equally many."""
    first_groups: list[Natural] | None = None
    """Number of each tag's first group, which its seed is counted from; null: counted on."""


class Mode(Managed):
    """Environments of a mode."""

    env_groups: Count
    """Groups of all tags together."""
    group_size: Count
    """Members of a group share configuration and seed."""
    env_configs: EnvConfigs


class Ray(Section):
    """For backend: ray."""

    address: str | None = None
    """null: the cluster of this process or of RAY_ADDRESS, or else a new local one."""
    num_cpus: Amount = 1
    """Claimed by each worker on its node."""
    resources: dict[str, Amount] = {}
    """Other resources that it claims, by name."""
    nodes: str | list[str] = "all"
    """all, worker (without the head), or a list of nodes."""


class EsManager(Managed):
    """The environments: what is played, where, and what happens when one fails."""

    format_penalty: float = -0.1
    """Added to the penalty for a turn with invalid actions."""
    use_multiprocessing: bool | Literal["auto"] = "auto"
    """true, false, or auto: worker processes only where measurements show that they pay off."""
    max_workers: Count | None = None
    """null: min(8, usable CPUs); with auto, more for environments that wait."""
    backend: Literal["process", "executor", "ray"] = "process"
    """Kind of workers: process, executor, or ray (on the nodes of a cluster)."""
    sequential_env_types: list[str] = []
    """Environment types that always stay in the main process, such as [webshop]."""
    step_timeout: Seconds = 60.0
    """Seconds for one turn of one environment."""
    reset_timeout: Seconds = 120.0
    """Seconds for one reset."""
    startup_timeout: Seconds = 60.0
    """Seconds for one worker to start."""
    on_env_failure: Literal["fallback", "truncate", "raise"] = "fallback"
    """fallback (retry once on a rebuilt environment, then truncate), truncate or raise."""
    failed_trajectories: Literal["mask", "drop_group"] = "mask"
    """Trajectories without weight in training: the failed one (mask), or its whole group (drop_group)."""
    max_restarts: Natural = 3
    """Number of times that an idle worker may die per episode."""
    env_state_hash: bool = False
    """Adds a hash of the initial state to each turn of a history, to group turns by state."""
    crash_report_dir: Annotated[str, Field(pattern=r"\S")] | None = "outputs/crash_reports"
    """Folder for crash reports, which replay a failure; null: none."""
    journal: str | None = None
    """File that keeps what is played, so that the same rollouts continue after a crash; null: none."""
    start_method: Literal["forkserver", "spawn"] = "forkserver"
    """forkserver: forks of a clean process; spawn: fresh interpreters."""
    ray: Ray = Ray()
    train: Mode | None = None
    val: Mode | None = None


class CustomEnv(Open):
    """A tag: an environment type, its configuration, and its instruction to the model."""

    env_type: str
    """A registered name, an entry point's name, or "package.module:Class"."""
    max_actions_per_traj: Count | None = None
    """Maximum number of actions per episode; needed by tags that are played."""
    env_config: Any = None
    """Fields of the environment's own configuration; null: its defaults."""
    env_instruction: str | None = None
    """The text before the first state; grid symbols, allowed actions and limits are added to it."""
    max_tokens: Count | None = None
    """The length requested in the prompt, in words; it does not cut replies."""


# Sections shared with verl


class Sampling(Open):
    """Sampling of replies."""

    do_sample: bool | None = None
    """false: greedy decoding."""
    temperature: Amount | None = None
    """Divides the logits; 0: greedy decoding."""
    top_p: Share | None = None
    """Samples from the smallest set of tokens with this total probability."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """-1: all tokens."""


class Rollout(Sampling, Filters):
    """Lengths and sampling of replies; val_kwargs take precedence in validations and evaluations (mode=val)."""

    max_model_len: Count | None = None
    """Maximum tokens of a context with its reply, for which the oldest turns are left out; null: no limit."""
    response_length: Count | None = None
    """Maximum tokens of one reply; null: the backend's."""
    val_kwargs: Sampling = Sampling()
    calculate_log_probs: bool = True
    """vllm: whether replies have log-probabilities."""
    logprobs_mode: str = "processed_logprobs"
    """vllm: which ones."""


class Optim(Open):
    """An optimizer."""

    lr: Amount | None = None
    """Learning rate; 3e-4 by default in the tiny trainer."""


class Policy(Open):
    """Updates of the policy."""

    optim: Optim = Optim()
    grad_clip: Amount = 1.0
    """Maximum norm of gradients."""
    ppo_epochs: Count = 1
    """Passes over a batch."""
    ppo_mini_batch_size: Count = 128
    """Rows per optimizer step."""
    ppo_max_token_len_per_gpu: Count = 16_384
    """Maximum number of tokens of a micro-batch, including padding."""
    clip_ratio: Amount = 0.2
    """PPO's clip range."""
    clip_ratio_low: Amount | None = None
    """Below 1; null: clip_ratio."""
    clip_ratio_high: Amount | None = None
    """Above 1; null: clip_ratio."""
    loss_agg_mode: str = "token-mean"
    """token-mean, seq-mean-token-sum or seq-mean-token-mean."""
    entropy_coeff: float = 0.0
    """Coefficient of the entropy bonus."""
    use_kl_loss: bool = False
    """verl's: whether to add a divergence from the initial model to the loss."""
    grpo_advantage_length_weight: bool = False
    """RAGEN's; not supported here."""
    filter_loss_scaling: str = "none"
    """RAGEN's; only none is supported."""


class Model(Open):
    """The model of trainers, and of hf and vllm if actor.model is null."""

    path: str | None = None
    """A folder or hub name."""
    trust_remote_code: bool = False
    """Whether the model's own code may run."""
    lora_rank: Natural = 0
    """verl's; not supported by the tiny trainer."""


class ActorRolloutRef(Open):
    """verl's section of the model, its updates and its replies."""

    model: Model = Model()
    actor: Policy = Policy()
    rollout: Rollout = Rollout()


class Data(Open):
    """verl's section of data."""

    apply_chat_template_kwargs: dict[str, Any] = {}
    """Passed to the chat template."""
    max_prompt_length: Count | None = None
    """use_parallel_envs: tokens of every prompt including padding; null: those of the longest one."""
    train_batch_size: Count | None = None
    """use_parallel_envs: groups per batch; null: es_manager.train.env_groups."""
    truncation: Literal["error", "left", "right", "middle"] = "error"
    """use_parallel_envs: treatment of longer prompts."""


class FilterGroups(Open):
    """Replacement of groups without variance by further sampling."""

    enable: bool = False
    """true: groups with equal scores are dropped, and others sampled instead."""
    metric: str | None = None
    """Only reward is supported."""
    max_num_gen_batches: Annotated[int, Field(ge=-1)] | None = None
    """Maximum number of tries; 0: no limit. null: 0 of rows per trajectory, 10 with use_parallel_envs."""
    on_exhausted: Literal["keep", "raise"] = "keep"
    """use_parallel_envs: after the last attempt, keep it whole, or raise."""


class Algorithm(Open):
    """verl's section of advantages."""

    adv_estimator: str = "grpo"
    """The tiny trainer has grpo; verl has others, such as gae for PPO with a critic."""
    norm_adv_by_std_in_grpo: bool = True
    """false is Dr. GRPO (arXiv:2503.20783)."""
    soft_advantage_reweight: bool = False
    """RAGEN's; not supported here."""
    zero_task_advantage: bool = False
    """RAGEN's; not supported here."""
    filter_groups: FilterGroups = FilterGroups()
    bi_level_gae: bool = False
    """RAGEN's; not supported here."""
    use_kl_in_reward: bool = False
    """verl's; not supported by the tiny trainer."""


class Trainer(Open):
    """The training run."""

    backend: Literal["tiny", "verl"] = "verl"
    """tiny: a model trained from scratch on a CPU; verl: verl's own trainer."""
    seed: Natural = 0
    """Of the initial weights, the sampling, and the order of training rows."""
    total_training_steps: Natural = 100
    """Training steps after the warm-up."""
    test_freq: Annotated[int, Field(ge=-1)] = 10
    """Steps between two validations; 0: only at the beginning and the end."""
    save_freq: Annotated[int, Field(ge=-1)] = 25
    """Steps between two checkpoints; 0: only at the end and when stopped."""
    max_ckpt_to_keep: Natural = 3
    """0: all."""
    resume_mode: str = "auto"
    """auto: resumes from the newest checkpoint in output_dir; disable: starts over."""
    logger: Any = "console"
    """tiny: [console] or []; metrics.jsonl is always written. verl: its trackers."""
    threads: Count = 1
    """tiny: threads of torch; more are slower for a model of this size."""
    reward_sign: Literal[1, -1] = 1
    """tiny: -1 negates rewards, but not the penalties for malformed replies."""


class TinyModel(Section):
    """The tiny trainer's model, named as in Qwen2Config."""

    hidden_size: Count = 64
    """Width."""
    num_hidden_layers: Count = 2
    """Layers."""
    num_attention_heads: Count = 4
    """Heads of each layer."""
    intermediate_size: Count = 256
    """Width of the layers' inner part."""
    max_position_embeddings: Count = 2048
    """Maximum context length in tokens."""
    initializer_range: Amount = 0.08
    """Standard deviation of the initial weights. At this size the usual 0.02 hardly learns."""
    rope_theta: Annotated[float, Field(ge=1)] = 20.0
    """Base of the rotary position embedding. A small one distinguishes neighbors in a short context; with the usual
    10000 this model does not learn to read a grid."""

    @model_validator(mode="after")
    def _even_heads(self) -> TinyModel:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(f"hidden_size = {self.hidden_size}: expected a multiple of twice num_attention_heads.")
        return self


class WarmUp(Section):
    """Supervised warm-up of the tiny trainer's model on scripted demonstrations."""

    steps: Natural = 300
    """Optimizer steps; 0 skips the warm-up."""
    groups: Count = 512
    """Number of different demonstrated starts, split among the tags like the training groups."""
    batch_size: Count = 32
    """Demonstrations per step."""
    lr: Amount = 3e-3
    """Learning rate; it rises over the first tenth of the steps and falls along a cosine to a twentieth."""
    random: Share = 0.5
    """Share of random replies."""
    malformed: Share = 0.02
    """Share of malformed replies."""
    seed: Natural = 1_000_000
    """Seed of the first demonstrated start."""


class RowsPerTurn(Open):
    """use_parallel_envs: rollouts with one row per turn, collected from containers of environments."""

    style: Literal["ragen", "verl-agent"] = "ragen"
    """verl-agent: replies must think first, and an invalid reply does nothing."""
    history_length: Natural = 2
    """Past steps shown in a prompt."""
    max_steps: Count | None = None
    """Maximum number of turns; null: agent_proxy.max_turn."""
    rollout: Any = None
    """{n: ..}: trajectories per group in training; null: es_manager.train.group_size."""


class AgentLoop(Section):
    """verl's trainer (trainer.backend: verl); agent_loop/trainer.yaml has its other settings."""

    service: Literal["ray", "local"] = "ray"
    """ray: environments live in an actor on each node; local: in each agent loop worker."""
    queue_timeout: Seconds = 600.0
    """Seconds that a request may wait for its worker, besides step_timeout or reset_timeout."""
    prompt_length: Count = 1024
    """Tokens for the first prompt; the rest of max_model_len is for the trajectory."""
    seed: int | None = None
    """Sent to the server with each request, for reproducible replies; null: none."""
    said: list[str] = []
    """The keys that the command line sets; filled in by `ragen train`."""


class Config(Open):
    """A whole configuration. Further sections are those of trainers, or hold values that other keys refer to."""

    seed: Seeds = Seeds()
    custom_envs: dict[str, CustomEnv] = {}
    """Environments by tag."""
    es_manager: EsManager = EsManager()
    agent_proxy: AgentProxy = AgentProxy()
    actor: Actor = Actor()
    collapse_detection: CollapseDetection = CollapseDetection()
    limit: Limits = Limits()
    mode: Literal["train", "val"] = "val"
    """Set of environments to play."""
    output_dir: Annotated[str, Field(pattern=r"\S")] = "outputs"
    """Folder for rows, results and reports."""
    report: bool = False
    """true: writes report.html for the browser."""
    resume: bool = False
    """true: resumes an interrupted run in the same output_dir."""
    verbose: bool = False
    """true: also show where the time went and what each worker did (same as -v)."""
    use_parallel_envs: bool = False
    """true: one row per turn; false: RAGEN's rows, one per trajectory."""
    model_path: str | None = None
    """The model that actor_rollout_ref.model.path refers to."""
    enable_response_mask: bool = True
    """Loss on replies only; false: on states too."""
    grpo_advantage_length_weight: bool = False
    """As actor_rollout_ref.actor.grpo_advantage_length_weight."""
    actor_rollout_ref: ActorRolloutRef = ActorRolloutRef()
    data: Data = Data()
    algorithm: Algorithm = Algorithm()
    trainer: Trainer = Trainer()
    tiny_model: TinyModel = TinyModel()
    warm_up: WarmUp = WarmUp()
    env: RowsPerTurn = RowsPerTurn()
    agent_loop: AgentLoop = AgentLoop()

    _source: Any = PrivateAttr(None)

    @property
    def source(self) -> Any:
        """The configuration that this one was read from, with its references unresolved."""
        return self._source

    def select(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key, also one of a trainer's; the default if there is none."""
        value: Any = self
        for part in key.split("."):
            if isinstance(value, BaseModel):
                value = dict(value)
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def changed(self, changes: Mapping[str, Any]) -> Config:
        """A copy with other values, by dotted key."""
        copy = self.model_copy(deep=True)
        for key, value in changes.items():
            above, _, name = key.rpartition(".")
            setattr(copy.select(above) if above else copy, name, value)
        return copy
