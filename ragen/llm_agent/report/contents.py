"""The content of a report: trajectories and facts about the run, also read back from a run's files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from ragen.errors import ConfigError
from ragen.llm_agent.backends.base import LEFT_OUT
from ragen.llm_agent.backends.prompt import state_of_message, text_of
from ragen.llm_agent.evaluation.replies import ENV_ERROR, JUDGED, kinds_of, outcome
from ragen.llm_agent.rollout.rollout_file import ABOUT, RUNS, about_run, describe_run, read_about
from ragen.llm_agent.rollout.timeline import Timeline
from ragen.llm_agent.rollout.trajectories import names_of_actions, played_turns
from ragen.llm_agent.tokens.sampled_tokens import RawReply

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Episode:
    """A trajectory to show.

    Attributes:
        state: Its rollout cache, as returned by ``EnvStateManager.get_rollout_states()``.
        seed: The seed of its reset.
        home: The process of its environment.
        names: The names of its actions by key, if any.
        error: Why it ended early; None if it did not.
        replies: Facts about each of its replies; see :func:`~ragen.llm_agent.backends.base.reply_facts`.
        chat: All its messages, including replies; empty if unknown.
        asked: Prompts that differ from the chat up to their turn, by the turn's index from 0.
    """

    state: Mapping[str, Any]
    seed: int | None = None
    home: str = "main"
    names: Mapping[Any, str] | None = None
    error: str | None = None
    replies: Sequence[Mapping[str, Any]] = ()
    chat: Messages = ()
    asked: Mapping[int, Messages] | None = None

    @property
    def tag(self) -> str:
        """Its tag."""
        return str(self.state["tag"])

    @property
    def record(self) -> dict[str, Any]:
        """As much of its record as :func:`~ragen.llm_agent.evaluation.results.evaluate` reads."""
        kept = {name: self.state[name] for name in ("tag", "group_id", "env_error", "invalid") if name in self.state}
        return kept | {
            "success": self.success,
            "actions": [turn["actions"] for turn in self.turns],
            "rewards": [turn["reward"] for turn in self.turns],
            "replies": self.replies,
            **({} if self.error is None else {"error": self.error}),
        }

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        """The played turns."""
        return played_turns(self.state)

    @property
    def outcome(self) -> str:
        """The outcome; see :func:`~ragen.llm_agent.evaluation.replies.outcome`."""
        return outcome({**self.state, **({} if self.error is None else {"error": self.error})})

    @property
    def success(self) -> bool:
        """Whether the goal was reached."""
        return bool(self.state.get("metrics", {}).get(f"{self.state['tag']}/success", 0.0))

    @property
    def outcome_label(self) -> str:
        """The outcome in words: ``success``, ``no success``, ``env error`` or ``missing reply``."""
        return self.outcome if self.outcome != JUDGED else "success" if self.success else "no success"

    @property
    def invalid(self) -> bool:
        """Whether a reply was penalized, or had no action to execute, in a turn that the environment played."""
        played = self.turns[:-1] if self.outcome == ENV_ERROR else self.turns
        return bool(self.state["penalty"]) or any(not turn["actions"] for turn in played)

    @property
    def kinds(self) -> list[str]:
        """The kinds of invalid replies in it; see ``evaluation.replies.KINDS``."""
        return kinds_of(self.replies)

    @property
    def reward(self) -> float:
        """The sum of its rewards without penalties; what is left of rounding errors is 0."""
        return round(float(sum(turn["reward"] for turn in self.turns)), 12) + 0.0

    def prompt(self, place: int) -> Messages:
        """The prompt of a turn, as far as known.

        Args:
            place: Index of the turn, from 0.
        """
        if self.asked is not None and place in self.asked:
            return self.asked[place]
        replies = [at for at, message in enumerate(self.chat) if message["role"] == "assistant"]
        return self.chat[: replies[place]] if place < len(replies) else ()


# Facts about the run

_LOCAL = ("hf", "vllm")


@dataclass(frozen=True)
class About:
    """Facts about a run; unknown ones are omitted.

    Attributes:
        facts: Value by name.
        command: The command that repeats it; empty if no command started it.
        configuration: The configuration that determines the trajectories, as flat keys.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The title of the run's page: the model's name if known, else the backend; empty if neither is known."""
        backend = self.facts.get("backend")
        who = self.facts.get("model") or ("scripted policies" if backend == "scripted" else backend)
        mode = self.facts.get("mode")
        return f"{who} ({mode})" if who and mode else str(who or "")

    @classmethod
    def of_config(cls, config: Any, mode: str, seeds: Sequence[int | None] = ()) -> Self:
        """The facts of a running rollout.

        Args:
            config: The whole configuration.
            mode: ``"train"`` or ``"val"``.
            seeds: Seeds of its episodes.

        Raises:
            ConfigError: A key cannot be read.
        """
        now, settings = describe_run(config), about_run(config, mode)
        return cls(facts_of(settings, [now], seeds), now["command"], settings)

    @classmethod
    def of_folder(cls, rows: Path, seeds: Sequence[int | None] = ()) -> Self:
        """The facts in the files beside a file of trajectories; unreadable ones are omitted."""
        settings = _read_settings(rows.with_name(ABOUT))
        runs = _read_runs(rows.with_name(RUNS))
        command = str(runs[-1].get("command", "")) if runs else ""
        return cls({"file": rows, **facts_of(settings, runs, seeds)}, command, settings)


def facts_of(
    settings: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], seeds: Sequence[int | None]
) -> dict[str, str]:
    """The facts at the top of a run's page.

    Args:
        settings: Flat keys, as in ``run.json``.
        runs: The run's starts, as in ``runs.jsonl``.
        seeds: Seeds of its episodes.
    """
    last, backend = runs[-1] if runs else {}, settings.get("actor.backend")
    servers = dict.fromkeys(str(run["server"]) for run in runs if run.get("server"))
    facts = {
        "model": settings.get("actor.model") or (_local_model(settings) if backend in _LOCAL else None),
        "backend": backend,
        "server": ", ".join(servers) or settings.get("actor.base_url"),
        "mode": settings.get("mode"),
        "seeds": _span(seeds),
        "date": _dates(runs),
        "version": last.get("version"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _local_model(settings: Mapping[str, Any]) -> Any:
    return settings.get("actor_rollout_ref.model.path")


def _span(seeds: Sequence[int | None]) -> str:
    known = sorted({seed for seed in seeds if seed is not None})
    if not known:
        return ""
    if len(known) == 1:
        return str(known[0])
    gaps = "" if len(known) == known[-1] - known[0] + 1 else f", {len(known)} of them"
    return f"{known[0]} to {known[-1]}{gaps}"


def _dates(runs: Sequence[Mapping[str, Any]]) -> str:
    began = [str(run["began"]) for run in runs if run.get("began")]
    if len(began) < 2:
        return "".join(began)
    resumed = "once" if len(began) == 2 else f"{len(began) - 1} times"
    return f"{began[0]}, resumed {resumed}, last {began[-1]}"


def _read_settings(path: Path) -> dict[str, Any]:
    with suppress(ConfigError):
        return read_about(path)
    return {}


def _read_runs(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [run for run in map(_run, lines) if run]


def _run(line: str) -> dict[str, Any]:
    try:
        run = json.loads(line)
    except ValueError:
        return {}
    return run if isinstance(run, dict) else {}


# The whole report


@dataclass(frozen=True)
class Report:
    """The content of a report; empty parts are omitted.

    Attributes:
        title: The page's title.
        facts: Further facts about the run.
        episodes: The trajectories.
        timeline: Activities by process and time.
        lanes: The manager's ``LaneStats``.
        seconds: Seconds by activity; activities may overlap.
        earlier: How many of the episodes an earlier start of the run played; timeline and seconds are without them.
        notes: Further sentences.
        about: Facts about the run.
        unfinished: Says that the run lacks trajectories or replies; empty if it has all.
        usage: ``requests``, ``retries``, ``prompt_tokens``, ``completion_tokens`` and ``cost`` (dollars).
    """

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    episodes: Sequence[Episode] = ()
    timeline: Timeline | None = None
    lanes: Sequence[Any] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    earlier: int = 0
    notes: Sequence[str] = ()
    about: About = field(default_factory=About)
    unfinished: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)


# Read back from files


def episode_of(record: Mapping[str, Any]) -> Episode:
    """A record as an episode, without its environment's process and its images, which records lack.

    Args:
        record: See :mod:`~ragen.llm_agent.rollout.trajectories`.

    Raises:
        KeyError, TypeError, ValueError: It is not a record of a rollout of this package.
    """
    names = record.get("action_names") or {}
    return Episode(
        state_of(record),
        record["seed"],
        "",
        {int(key) if key.lstrip("-").isdecimal() else key: name for key, name in names.items()},
        record.get("error"),
        record.get("replies", ()),
        record.get("messages", ()),
        asked=_shortened_prompts(record.get("messages", ()), record.get("replies", ())),
    )


def episodes_of(records: Iterable[Mapping[str, Any]], path: Path) -> list[Episode]:
    """The records of a file as episodes.

    Raises:
        ConfigError: One is not a record of a rollout of this package.
    """
    try:
        return [episode_of(record) for record in records]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a rollout of this package: {type(error).__name__}: {error}.") from error


def _shortened_prompts(chat: Messages, told: Sequence[Mapping[str, Any]]) -> dict[int, Messages] | None:
    """The prompts that left out their oldest turns, each with a note in the place of these."""
    asking = next((place for place, message in enumerate(chat) if message["role"] == "user"), 0)
    replies = [place for place, message in enumerate(chat) if message["role"] == "assistant"]
    prompts: dict[int, Messages] = {}
    for place, (end, facts) in enumerate(zip(replies, told, strict=False)):
        count = facts.get(LEFT_OUT)
        if isinstance(count, int) and 0 < count <= place:
            first = f"turns 1 to {count}" if count > 1 else "turn 1"
            note = f"The prompt had no room for {first}; of the message above, it had the instruction alone."
            left = {"role": "left out", "content": note}
            prompts[place] = [*chat[: asking + 1], left, *chat[replies[count - 1] + 1 : end]]
    return prompts or None


def state_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The rollout cache of which a record was made, as far as a page shows it.

    Args:
        record: See :mod:`~ragen.llm_agent.rollout.trajectories`.
    """
    kept = {name: record[name] for name in ("env_id", "group_id", "tag", "penalty", "metrics")}
    kept |= {name: record[name] for name in ("env_error", "invalid", "parent", "turn") if name in record}
    if "messages" not in record:  # rows without texts
        played = zip(record["actions"], record["rewards"], strict=True)
        return kept | {"history": [{"state": "", "actions": a, "reward": r, "info": {}} for a, r in played]}
    chat = record["messages"]
    asked = [place for place, message in enumerate(chat) if message["role"] == "user"]
    replies = [text_of(message) for message in chat if message["role"] == "assistant"]
    raw = record.get("raw_replies", replies)
    turns = zip(asked, replies, raw, record["actions"], record["rewards"], record["infos"], strict=False)
    history = [
        {
            "state": state_of_message(chat[place]),
            "llm_response": reply,
            "llm_raw_response": _raw_reply(written, reply),
            "actions": actions,
            "reward": reward,
            "info": info,
        }
        for place, reply, written, actions, reward, info in turns
    ]
    last = [{"state": record["last_state"]}] if record.get("last_state") else []
    return kept | {"history": [*history, *last]}


def _raw_reply(written: str, reply: str) -> RawReply:
    """A reply as it was in the rollout cache: with the tag with which its form in the chat begins."""
    from ragen.llm_agent.prompting.replies import ANSWER, THINK  # here, since it imports numpy, and help comes at once

    tag = next((tag for tag in (THINK, ANSWER) if reply.startswith(tag) and not written.lstrip().startswith(tag)), "")
    return RawReply(tag + written, tag_added=bool(tag))


# Made of a played rollout


class PlayedRollout(Protocol):
    """The attributes of a played rollout that a report needs, as ``LLMAgentProxy`` has them."""

    config: Any
    actor: Any
    failures: dict[int, str]
    rollout_states: list[dict[str, Any]]
    timeline: Timeline

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by activity of the rollout."""

    def prepare(self, val: bool = False) -> tuple[Any, Any]:
        """The managers of environments and of contexts."""


def report_of(
    proxy: PlayedRollout,
    mode: str,
    title: str = "",
    facts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    earlier: Iterable[Mapping[str, Any]] = (),
) -> Report:
    """The report of a proxy's last rollout.

    Args:
        proxy: After a rollout, its managers still open.
        mode: Which of its managers played: ``"train"`` or ``"val"``.
        title: The page's title.
        facts: Further facts about the run.
        notes: Further sentences.
        earlier: Records of trajectories of an earlier run; see :mod:`~ragen.llm_agent.rollout.trajectories`.
    """
    es_manager, _ = proxy.prepare(val=mode == "val")
    played = [episode_of_state(proxy, mode, state) for state in proxy.rollout_states]
    before = list(map(episode_of, earlier))
    episodes = sorted([*before, *played], key=lambda episode: episode.state["env_id"])
    about = About.of_config(proxy.config, mode, [episode.seed for episode in episodes])
    return Report(
        title=title or about.title or f"a model ({mode})",
        facts=facts or {},
        episodes=episodes,
        timeline=proxy.timeline,
        lanes=es_manager.lane_stats(),
        seconds=proxy.seconds,
        earlier=len(before),
        notes=notes,
        about=about,
        usage=proxy.actor.usage,
    )


def episode_of_state(proxy: PlayedRollout, mode: str, state: dict[str, Any]) -> Episode:
    """A rollout cache as an episode.

    Args:
        proxy: The proxy that played it, with open managers.
        mode: Which of its managers played.
        state: The cache.
    """
    es_manager, ctx_manager = proxy.prepare(val=mode == "val")
    env_id = state["env_id"]
    entry, invalid = es_manager.envs[env_id], es_manager.invalid_turns(env_id)
    episode = Episode(
        state={**state, "invalid": [at in invalid for at in range(len(played_turns(state)))]},
        seed=entry["status"].seed,
        home=es_manager.home(env_id),
        names=names_of_actions(entry),
        error=proxy.failures.get(env_id),
        replies=proxy.actor.replies.get(env_id, ()),
        chat=ctx_manager.transcript(state),
    )
    return replace(episode, asked=_separate_prompts(ctx_manager, episode))


def _separate_prompts(ctx_manager: Any, episode: Episode) -> dict[int, Messages] | None:
    """The prompts that differ from the chat up to that turn."""
    left_out = [facts.get(LEFT_OUT, 0) for facts in episode.replies]
    left_out += [None] * (len(episode.turns) - len(left_out))
    prompts = {place: ctx_manager.prompt(episode.state, place, left_out[place]) for place in range(len(episode.turns))}
    return {place: prompt for place, prompt in prompts.items() if prompt != list(episode.prompt(place))} or None
