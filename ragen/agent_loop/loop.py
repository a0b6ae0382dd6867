"""verl's side: the agent loop that plays one trajectory, from its (tag, seed) row to tokens, mask and rewards.

``config/agent_loop/agent_loops.yaml`` names :class:`RagenEnvLoop` as ``ragen_env``; that is its only registration (see
:mod:`ragen.agent_loop`). verl creates one object per trajectory, so parts that all trajectories of a process can share
are created once and cached (:func:`shared_parts`).

RAGEN's own keys are read from the section ``ragen`` of the trainer's configuration, where
:mod:`ragen.agent_loop.training` puts the whole configuration that the user gave.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf

from ragen.agent_loop.episode import Episode
from ragen.agent_loop.replies import StepReplies
from ragen.agent_loop.script import Script
from ragen.agent_loop.session import Service, Session, connect
from ragen.agent_loop.tokens import TrajectoryTokens
from ragen.config.loading import as_config
from ragen.errors import (
    BackendError,
    ConfigError,
    ContextFullError,
    EnvError,
    InputError,
    ServiceTimeoutError,
    SessionLostError,
)
from ragen.extras import needs
from ragen.validity import ENV_ERROR, failures_in_words

with needs("verl", "verl's agent loop"):
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
    from verl.utils.profiler import simple_timer

log = logging.getLogger(__name__)

SECTION = "ragen"  # of the trainer's configuration
WORST = "max_global_steps"  # the server's field of which the last reply's value counts


@dataclass(frozen=True)
class SharedParts:
    """The parts that all trajectories of a process share.

    Attributes:
        script: Writes prompts and parses replies.
        service: The environment service.
        reply_length: Maximum number of tokens of a reply.
        seed: ``agent_loop.seed``, from which the seed of each reply is derived; None for unseeded sampling.
        replies: The journal of the step in flight, in ``replies`` of the output folder.
        errors: Of environments that failed in this process.
        trainer_config: Kept alive so that its id is not reused.
    """

    script: Script
    service: Service
    reply_length: int
    seed: int | None
    replies: StepReplies
    trainer_config: Any
    errors: list[str] = field(default_factory=list)


_shared: dict[int, SharedParts] = {}


def shared_parts(trainer_config: Any, tokenizer: Any) -> SharedParts:
    """The parts for a trainer's configuration, created on first use.

    Raises:
        ConfigError: The configuration has no section ``ragen``, or a key of it has an invalid value.
    """
    parts = _shared.get(id(trainer_config))
    if parts is None:
        section = trainer_config.get(SECTION)
        if section is None:
            raise ConfigError(
                f"the trainer's configuration has no section {SECTION!r}, which the agent loop ragen_env reads; start "
                "with train.py, or with the configuration file that it writes."
            )
        config: Any = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
        script = Script(config, tokenizer)
        length = script.settings.response_length or trainer_config.actor_rollout_ref.rollout.response_length
        seed = as_config(config).agent_loop.seed
        folder = Path(as_config(config).output_dir).absolute() / "replies"
        replies = StepReplies(folder, {"configuration": hashlib.sha256(str(trainer_config).encode()).hexdigest()})
        parts = SharedParts(script, connect(config), length, seed, replies, trainer_config)
        _shared[id(trainer_config)] = parts
    return parts


class RagenEnvLoop(AgentLoopBase):
    """Plays one trajectory."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See ``AgentLoopBase``; nothing is added to its arguments."""
        super().__init__(*args, **kwargs)
        self._parts = shared_parts(self.config, self.tokenizer)
        self._seconds: dict[str, float] = {}
        self._server_says: dict[str, Any] = {}
        self._preempted = -1
        self._invalid_replies = 0
        self._rows: list[TrajectoryTokens] = []
        self._place, self._step = "", 0
        self._asked = 0

    async def run(  # type: ignore[override]  # verl's V1 trainer takes lists, verl's annotation does not say so
        self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play a trajectory to its end; if its environment fails, raise.

        verl leaves out a trajectory that raised: its group's advantages and all metrics are computed without it.

        Args:
            sampling_params: The sampling parameters.
            priority: Passed on to the server.
            **kwargs: The row of the data set, from which ``extra_info`` with ``tag``, ``seed`` and ``mode`` is read.

        Returns:
            The trajectory as one output; or, if the context shows only the last turns, an output per turn.

        Raises:
            InputError: The row names no environment, or the first prompt is longer than ``rollout.prompt_length``.
            BackendError: The server returned no tokens.
            EnvError: The environment failed.
            SessionLostError, ServiceTimeoutError: So did its service.
        """
        tag, seed, mode = read_row(kwargs)
        step, number = kwargs.get("global_steps", 0), kwargs.get("session_id", 0)
        self._step = int(step)
        self._place = f"{mode}/{step}/{tag}/{seed}/{number}"
        session = Session(self._parts.service, tag, seed, mode)
        asked: dict[str, Any] = {"request": uuid4().hex, "sampling_params": sampling_params, "priority": priority}
        try:
            with simple_timer("tool_calls", self._seconds):
                opened = await session.open()
            penalty = self._parts.script.format_penalty
            episode = Episode(tag, seed, opened.max_actions, penalty, opened.observation)
            await self._play(session, episode, partial(self._sample, **asked))
        except (EnvError, SessionLostError, ServiceTimeoutError) as error:
            self._parts.errors.append(str(error) if type(error) is EnvError else type(error).__name__)
            log.warning(
                "tag %r, seed %d: left out, its environment failed (%s in this process so far)",
                tag,
                seed,
                failures_in_words(self._parts.errors),
            )
            raise
        finally:
            await asyncio.shield(session.close())  # also while the trajectory is canceled
        return self._outputs(episode)

    async def _play(
        self, session: Session, episode: Episode, sample: Callable[[TrajectoryTokens, int], Awaitable[list[int]]]
    ) -> None:
        """Play an episode's turns with replies from ``sample``."""
        script = self._parts.script
        while not episode.is_over and len(episode.turn_scores) < script.max_turn:
            budget = self._make_room(self._rows, episode)
            if budget < 1:
                break
            tokens = await sample(self._rows[-1], budget)
            if not tokens:
                raise BackendError("the model server gave no tokens; look at the server's own messages.")
            reply = script.read(tokens)
            with simple_timer("tool_calls", self._seconds):
                result = await session.play(reply.actions, episode.actions_left)
            self._invalid_replies += bool(result.malformed)
            episode.apply(reply, result)
            if error := result.info.get(ENV_ERROR):
                raise EnvError(str(error))

    def _make_room(self, token_rows: list[TrajectoryTokens], episode: Episode) -> int:
        """Append the prompt for the next reply to the last row, or to a new one.

        Returns:
            The maximum number of tokens of the reply; less than 1 if there is no room, in which case nothing was added.
        """
        script, length = self._parts.script, self._parts.reply_length
        room = self.rollout_config.response_length
        if not token_rows or not script.is_one_row:
            try:
                token_rows.append(TrajectoryTokens(self._checked(script.prompt(episode.rollout))))
            except ContextFullError as error:  # the model cannot go on, which ends its episode
                if not token_rows:
                    raise
                log.warning("an episode of tag %r and seed %d is over: %s", episode.tag, episode.status.seed, error)
                return 0
            return min(length, room)
        context = script.continuation(episode.rollout)
        left = room - len(token_rows[-1].response) - len(token_rows[-1].unsaid(context))
        if left >= 1:
            token_rows[-1].add_context(context)
        return min(length, left)

    def _checked(self, prompt: list[int]) -> list[int]:
        limit = self.rollout_config.prompt_length
        if len(prompt) > limit:
            raise ContextFullError(
                f"a prompt has {len(prompt)} tokens, and actor_rollout_ref.rollout.prompt_length is {limit}; raise "
                "agent_loop.prompt_length, or shorten the instruction."
            )
        return prompt

    async def _sample(
        self, row_tokens: TrajectoryTokens, budget: int, request: str, sampling_params: Mapping[str, Any], priority: int
    ) -> list[int]:
        """Have the server continue a row; returns the tokens of the reply."""
        prompt, asked = row_tokens.ids, {**sampling_params, **self._seed(), "max_tokens": budget}

        async def ask() -> Any:
            output = await self.server_manager.generate(
                request_id=request, prompt_ids=prompt, sampling_params=asked, priority=int(priority)
            )
            if output.num_preempted is not None:
                self._preempted = max(0, self._preempted) + output.num_preempted
            return output

        with simple_timer("generate_sequences", self._seconds):
            reply = await self._parts.replies.reply(self._step, f"{self._place}/{self._asked}", asked, prompt, ask)
        worst = {WORST: reply.extra_fields[WORST]} if WORST in reply.extra_fields else {}
        self._server_says = {**reply.extra_fields, **self._server_says, **worst}
        tokens = reply.tokens[:budget]
        row_tokens.add_reply(tokens, reply.log_probs[:budget] if reply.log_probs else None)
        return tokens

    def _seed(self) -> dict[str, int]:
        """The seed of the next reply, derived from the step, the row, the trajectory and the reply's number."""
        base, self._asked = self._parts.seed, self._asked + 1
        if base is None:
            return {}
        digest = hashlib.sha256(f"{base}/{self._place}/{self._asked}".encode()).digest()
        return {"seed": int.from_bytes(digest[:4], "big") >> 1}

    def _outputs(self, episode: Episode) -> AgentLoopOutput | list[AgentLoopOutput]:
        score = float(sum(episode.turn_scores))
        extra_fields = {
            **self._server_says,
            "turn_scores": list(episode.turn_scores),
            "tool_rewards": list(episode.status.rewards),
            ENV_ERROR: "",  # one with a failed environment has raised
            "reward_extra_info": self._summary(episode, score),
        }
        outputs = [
            AgentLoopOutput(
                prompt_ids=row_tokens.prompt,
                response_ids=row_tokens.response,
                response_mask=row_tokens.mask,
                response_logprobs=row_tokens.log_probs,
                reward_score=score,
                num_turns=2 * len(episode.turn_scores),
                metrics=AgentLoopMetrics(num_preempted=self._preempted, **self._seconds),
                extra_fields=copy.deepcopy(extra_fields),
            )
            for row_tokens in self._rows
        ]
        return outputs[0] if self._parts.script.is_one_row else outputs

    def _summary(self, episode: Episode, score: float) -> dict[str, float]:
        """The values that verl averages at validation, and may filter groups by; the same keys for every tag.

        ``acc`` is not among them: verl counts a trajectory that raised as one with an ``acc`` of 0.
        """
        return {
            "score": score,
            "success": float(episode.success),
            "num_actions": float(episode.status.num_actions),
            "turns": float(len(episode.turn_scores)),
            "env_reward": float(sum(episode.status.rewards)),
            "format_penalty": float(episode.rollout["penalty"]),
            "env_seconds": float(self._seconds.get("tool_calls", 0.0)),
            "invalid_replies": float(self._invalid_replies),
        }


def read_row(row: Mapping[str, Any]) -> tuple[str, int, str]:
    """The tag, seed and mode of a row of the data set.

    Raises:
        InputError: The row has none; it was not written by :mod:`ragen.agent_loop.dataset`.
    """
    info = row.get("extra_info") or {}
    tag, seed = info.get("tag"), info.get("seed")
    if not isinstance(tag, str) or seed is None:
        raise InputError(f"a row's extra_info is {dict(info)!r}, without tag or seed; train.py writes the data set.")
    return tag, int(seed), str(info.get("mode", "train"))
