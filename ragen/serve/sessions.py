"""Sessions of clients: one episode at a time on the environment service, which a lost connection does not end.

::

    WebSocket or HTTP            Sessions                       EnvService (ragen.agent_loop.service)
      attach(token) ---------->  ServedSession ---------------> lanes: worker processes
      reset, step, state         |  agent_loop's Session: replays where an environment was lost
                                 |  Journal: the same turns on disk, if there is a folder for them

A client resumes a session by its token; a session without a token ends with its connection. The calls of a session
run one after another. They must not be cancelled: a call that has begun is finished even if its client is gone. A call
is in the journal before it is answered. A call that fails, or that cannot be journaled, has not happened.
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen.agent_loop.service import EnvService
from ragen.agent_loop.session import Session
from ragen.errors import (
    AmbiguousCallError,
    ConfigError,
    DivergenceError,
    EpisodeOverError,
    InputError,
    RagenError,
    ServiceFullError,
    StateError,
    in_short,
)
from ragen.llm_agent.config.environments import read_config
from ragen.llm_agent.prompting.replies import sent_actions
from ragen.parallel.episode.turn import Observation, Turn, TurnResult
from ragen.seeds import SEED_LIMIT, checked_seed
from ragen.serve.journal import Journal, Journals
from ragen.tools.json_codec import encode

log = logging.getLogger(__name__)

MODES = ("train", "val")
LONGEST_ID = 200
"""Maximum length of an id that a client chooses, in characters."""
RESTARTS = 20
"""How often a worker may be killed during one turn before its environment is considered the cause."""
ENDED = 1001
"""WebSocket's close code for a connection whose session has ended."""
Answer = dict[str, Any]
NO_EPISODE: Answer = {"episode_id": None, "step_count": 0}


@dataclass(frozen=True)
class ServeSettings:
    """What a server offers, and its limits.

    Attributes:
        config: RAGEN's configuration as plain dicts, including the limits of ``agent_loop``.
        tags: Keys of ``custom_envs`` that are served; the first one is the default.
        max_sessions: Maximum number of concurrent sessions.
        idle_timeout: Seconds after which a session without calls is closed.
        journal_dir: Folder that keeps open episodes for the next server; None keeps them in memory only.
        action_sep: Separates named actions in a text.
        max_actions_per_turn: Further actions are dropped; None keeps all.
    """

    config: Mapping[str, Any]
    tags: Sequence[str]
    max_sessions: int = 1024
    idle_timeout: float = 3600.0
    journal_dir: Path | None = None
    action_sep: str = "||"
    max_actions_per_turn: int | None = None


@dataclass
class _Episode:
    """An episode and its last answer."""

    session: Session
    head: dict[str, Any]  # env, seed, mode, episode_id, max_actions
    answer: Answer
    request_id: str | None = None
    turns: int = 0
    num_actions: int = 0
    done: bool = False

    @property
    def actions_left(self) -> int:
        return int(self.head["max_actions"]) - self.num_actions

    def note(self, answer: Answer, request_id: str | None, executed: int) -> None:
        """Count a turn that was played."""
        self.turns += 1
        self.num_actions += executed
        self.done = answer["done"]
        self.answer, self.request_id = answer, request_id


class Sessions:
    """All sessions of a server; used in one event loop."""

    def __init__(self, settings: ServeSettings) -> None:
        """Check the configuration; workers start with the first environment.

        Args:
            settings: The environments and limits.

        Raises:
            ConfigError: No environment is named, the configuration is invalid, or the folder for journals cannot be
                created.
        """
        if not settings.tags:
            raise ConfigError("no environment is named; there is nothing to serve.")
        self.settings = settings
        sections = dict(settings.config)
        # A session has one environment, and two during a reset; the number of sessions is limited here.
        sections["agent_loop"] = {**(sections.get("agent_loop") or {}), "max_sessions": 2 * settings.max_sessions}
        managed = sections.get("es_manager") or {}
        restarts = max(RESTARTS, managed.get("max_restarts") or 0)
        sections["es_manager"] = {**managed, "max_restarts": restarts}
        self.named = {tag: _action_names(sections, tag) for tag in settings.tags}
        self.service = EnvService(sections)
        self.journals: Journals | None = None
        if settings.journal_dir is not None:
            try:
                self.journals = Journals(settings.journal_dir)
                self.journals.take_in()
            except OSError as error:
                raise ConfigError(f"--journal-dir {settings.journal_dir}: {error.strerror}.") from error
        self._open: dict[str, ServedSession] = {}

    def __len__(self) -> int:
        """The number of open sessions."""
        return len(self._open)

    @property
    def examples(self) -> tuple[str, ...]:
        """Names of the default environment's actions; empty if they have none."""
        return self.named[self.settings.tags[0]]

    def attach(self, token: str | None) -> ServedSession:
        """The session of a token, created on first use; None creates one that ends with its connection.

        Raises:
            InputError: The token is empty or too long.
            ServiceFullError: The maximum number of sessions is open.
        """
        if token is not None and not 0 < len(token) <= LONGEST_ID:
            raise InputError(f"a session's token has 1 to {LONGEST_ID} characters.")
        key = token if token is not None else f"/{secrets.token_hex(16)}"  # no token has a slash
        session = self._open.get(key)
        if session is None:
            if len(self._open) >= self.settings.max_sessions:
                raise ServiceFullError(
                    f"{len(self._open)} sessions are open, and there may be {self.settings.max_sessions}; close one, "
                    "or start the server with a higher --max-sessions."
                )
            journal = self.journals.of(token) if token is not None and self.journals is not None else None
            session = self._open[key] = ServedSession(self, key, journal)
        session.used = time.monotonic()
        session.holders += 1
        return session

    async def leave(self, session: ServedSession) -> None:
        """Let go of an attached session; it ends if it has no token, or no episode and nothing else that holds it."""
        session.holders -= 1
        is_nameless = session.key.startswith("/")
        if not session.holders and (is_nameless or not session.has_episode):
            await session.end(keeps_journal=not is_nameless)

    async def knows(self, token: str | None) -> bool:
        """Whether a token has a session, open or in a journal."""
        if token is None or token in self._open or self.journals is None:
            return token in self._open
        return await asyncio.to_thread(self.journals.of(token).path.exists)

    def drop(self, session: ServedSession) -> None:
        """Forget a session that has ended or could not be loaded."""
        if self._open.get(session.key) is session:
            del self._open[session.key]

    async def sweep(self) -> None:
        """Close idle sessions, which resume from their journals when their clients return."""
        oldest = time.monotonic() - self.settings.idle_timeout
        for session in [each for each in self._open.values() if each.used < oldest and not each.is_busy]:
            log.warning("a session was idle for %g s; it is closed", self.settings.idle_timeout)
            await session.end(keeps_journal=True)

    async def shut_down(self) -> None:
        """Close all environments and end the workers; journals stay."""
        for session in list(self._open.values()):
            session.let_go()
        self._open.clear()
        await self.service.shut_down()
        if self.journals is not None:
            await asyncio.to_thread(self.journals.close)


class ServedSession:
    """One client's session.

    Attributes:
        key: Its token, or a generated name.
        used: Time of its last call, in seconds of the monotonic clock.
        holders: Number of calls and connections that are attached.
        on_end: Closes the connection that holds the session; None if there is none.
    """

    def __init__(self, sessions: Sessions, key: str, journal: Journal | None) -> None:
        """Begin without an episode; the first call reads the journal, if any."""
        self.key = key
        self.used = time.monotonic()
        self.holders = 0
        self.on_end: Callable[[int], Awaitable[None]] | None = None
        self._sessions = sessions
        self._journal = journal
        self._is_loaded = journal is None
        self._episode: _Episode | None = None
        self._lock = asyncio.Lock()
        self._lost: str | None = None  # the call whose answer was lost with its connection
        self._has_ended = False

    @property
    def has_episode(self) -> bool:
        """Whether there is an episode in memory."""
        return self._episode is not None

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return self._lock.locked()

    def note_lost(self, call: str) -> None:
        """Note that an answer could not be sent; the next call without a ``request_id`` is refused once for it."""
        self._lost = call

    async def reset(self, data: Mapping[str, Any], request_id: str | None = None) -> Answer:
        """Begin an episode.

        Args:
            data: May have ``env``, ``seed`` or ``index``, ``mode`` or ``split``, and ``episode_id``; other keys are
                ignored.
            request_id: The client's id of this call.

        Raises:
            InputError: A value is invalid.
            RagenError: The environment could not be opened; the previous episode continues.
        """
        return await self._alone(self._reset, data, _checked_id("request_id", request_id))

    async def step(self, action: Mapping[str, Any], request_id: str | None = None) -> Answer:
        """Play a turn.

        Args:
            action: ``{"text": ...}``.
            request_id: The client's id of this call; if that of the last call, its answer is returned again.

        Raises:
            InputError: The action is invalid.
            StateError: There is no episode, or it is over.
            RagenError: The turn was not played.
        """
        return await self._alone(self._step, _checked_text(action), _checked_id("request_id", request_id))

    async def state(self) -> Answer:
        """The state of the episode; it also shows whether a call whose answer was lost has been played."""
        return await self._alone(self._state)

    async def end(self, keeps_journal: bool) -> None:
        """Close the environment and the connection."""
        async with self._lock:
            self._has_ended = True
            if not keeps_journal and self._journal is not None:
                with suppress(RagenError):
                    await self._load()
                    await asyncio.to_thread(self._journal.remove)
            await self._let_go()
            self._sessions.drop(self)
        if self.on_end is not None:
            await self.on_end(ENDED)

    def let_go(self) -> None:
        """Leave the session to the next server; a busy one keeps its journal locked until the process ends."""
        self._has_ended = True
        if self._journal is not None and not self.is_busy:
            self._journal.release()

    async def _let_go(self) -> None:
        episode, self._episode = self._episode, None
        if self._journal is not None:
            try:
                await asyncio.to_thread(self._journal.hand_over)
            except OSError:  # it is unlocked all the same; this server's log has the turns
                log.exception("a journal could not be synced")
        if episode is not None:
            await episode.session.close()

    async def _alone(self, call: Callable[..., Awaitable[Answer]], *given: Any) -> Answer:
        async with self._lock:
            self._check_open()
            await self._load()
            try:
                return await call(*given)
            finally:
                self.used = time.monotonic()

    async def _load(self) -> None:
        if self._is_loaded:
            return
        assert self._journal is not None
        try:
            lines = await asyncio.to_thread(self._journal.load)
        except BaseException:
            self._has_ended = True
            self._sessions.drop(self)
            raise
        self._is_loaded = True
        if lines:
            self._episode = self._resumed(lines)

    def _resumed(self, lines: Sequence[Mapping[str, Any]]) -> _Episode:
        head, *turns = lines
        played = [(Turn(tuple(each["actions"]), each["actions_left"]), each["recorded"]) for each in turns]
        order = (head["head"]["env"], head["head"]["seed"], head["head"]["mode"])
        session = Session.resumed(self._sessions.service, order, head["first"], played)
        episode = _Episode(session, head["head"], head["answer"], head["request_id"])
        for each in turns:
            episode.note(each["answer"], each["request_id"], each["executed"])
        return episode

    def _known(self, request_id: str | None, call: str) -> Answer | None:
        """The answer of a call that is repeated; None for a new call."""
        episode, lost = self._episode, self._lost
        self._lost = None
        if request_id is not None:
            return episode.answer if episode is not None and episode.request_id == request_id else None
        if lost is not None:
            raise AmbiguousCallError(
                f"the answer to this session's last call, a {lost}, was lost with its connection: that call was "
                f"played. This {call} was not; if it repeats that call, ask for the state and go on from there, "
                "else send it again. With a request_id, the lost answer is given again instead."
            )
        return None

    async def _reset(self, data: Mapping[str, Any], request_id: str | None) -> Answer:
        head = self._head(data)
        known = self._known(request_id, "reset")
        if known is not None:
            return known
        before = self._episode
        session = Session(self._sessions.service, head["env"], head["seed"], head["mode"])
        try:
            opened = await session.open()
            head["max_actions"] = opened.max_actions
            shown = await _shown(opened.observation)
            about = {"turn": 0, "env": head["env"], "seed": head["seed"], "episode_id": head["episode_id"]}
            answer = {"observation": shown, "reward": None, "done": False, "metadata": about}
            if self._journal is not None:
                line = {"head": head, "first": session.first, "request_id": request_id, "answer": answer}
                await asyncio.to_thread(self._journal.begin, line)
        except BaseException:
            await session.close()
            raise
        self._episode = _Episode(session, head, answer, request_id)
        if before is not None:
            await before.session.close()
        return answer

    async def _step(self, text: str, request_id: str | None) -> Answer:
        known = self._known(request_id, "step")
        if known is not None:
            return known
        episode = self._episode
        if episode is None:
            raise StateError("there is no episode yet; send reset first.")
        if episode.done:
            raise EpisodeOverError(f"the episode is over after {episode.turns} turns; send reset.")
        actions, left = self._actions(episode.head["env"], text), episode.actions_left
        try:
            result = await episode.session.play(actions, left)
        except DivergenceError:
            await self._go_back(episode)
            raise
        try:
            answer = _answered(result, await _shown(result.observation), episode)
            if self._journal is not None:
                _, recorded = episode.session.played[-1]
                line = {
                    "turn": episode.turns,
                    "actions": actions,
                    "actions_left": left,
                    "recorded": encode(list(recorded)),
                }
                line |= {"executed": len(result.executed), "request_id": request_id, "answer": answer}
                await self._journal.append(line)
        except BaseException:
            await self._go_back(episode)
            raise
        episode.note(answer, request_id, len(result.executed))
        return answer

    async def _go_back(self, episode: _Episode) -> None:
        """Drop a turn that cannot be kept: the next call rebuilds the environment as it was before."""
        played, head = episode.session, episode.head
        order = (head["env"], head["seed"], head["mode"])
        episode.session = Session.resumed(self._sessions.service, order, played.first, played.played[: episode.turns])
        await played.close()

    async def _state(self) -> Answer:
        self._lost = None
        episode = self._episode
        if episode is None:
            return NO_EPISODE
        head = {name: episode.head[name] for name in ("episode_id", "env", "seed", "mode")}
        return {**head, "step_count": episode.turns, "actions_left": episode.actions_left, "done": episode.done}

    def _check_open(self) -> None:
        if self._has_ended:
            raise StateError("this session has ended; connect again.")

    def _head(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """How an episode begins, from the data of a reset."""
        tags = self._sessions.settings.tags
        env, mode, seed = data.get("env") or tags[0], data.get("mode") or "train", data.get("seed")
        if env not in tags:
            raise InputError(f"env is {in_short(env)}; this server has {', '.join(tags)}.")
        if mode not in MODES:
            raise InputError(f"mode is {in_short(mode)}; expected one of {', '.join(MODES)}.")
        if seed is None:
            seed = secrets.randbelow(SEED_LIMIT)
        episode_id = _checked_id("episode_id", data.get("episode_id")) or secrets.token_hex(8)
        return {"env": env, "seed": checked_seed(seed), "mode": mode, "episode_id": episode_id}

    def _actions(self, env: str, text: str) -> list[str]:
        settings = self._sessions.settings
        if not self._sessions.named[env]:
            return sent_actions(text, None)
        return sent_actions(text, settings.action_sep)[: settings.max_actions_per_turn]


def _action_names(config: Mapping[str, Any], tag: str) -> tuple[str, ...]:
    """The names of a tag's actions, empty for free text; checks the tag's entry."""
    part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}
    checked = read_config({**config, "es_manager": {**(config.get("es_manager") or {}), "train": part}}, "train")
    return tuple((getattr(checked.entries[0].spec.config, "action_lookup", None) or {}).values())


def _checked_id(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= LONGEST_ID):
        return value
    raise InputError(f"{name} is {in_short(value)}; expected a text of 1 to {LONGEST_ID} characters.")


def _checked_text(action: Mapping[str, Any]) -> str:
    text = action.get("text")
    others = action.keys() - {"text", "metadata"}
    if not isinstance(text, str) or others:
        wrong = f"unknown fields: {in_short(sorted(others))}" if others else f"text is {in_short(text)}"
        raise InputError(f"an action is {{'text': '...'}}, with a text alone; {wrong}.")
    return text


def _answered(result: TurnResult, shown: dict[str, Any], episode: _Episode) -> Answer:
    """The answer to a turn; the reward is the environment's own, without the format penalty."""
    left = episode.actions_left - len(result.executed)
    is_over = bool(result.done) or left <= 0
    is_cut = is_over and not (result.done and "env_error" not in result.info)
    about = {"turn": episode.turns + 1, "malformed": result.malformed, "actions_left": left}
    about |= {"info": encode(result.info), "truncated": is_cut}
    return {"observation": shown, "reward": float(result.reward), "done": is_over, "metadata": about}


async def _shown(observation: Observation) -> dict[str, Any]:
    if isinstance(observation, str):
        return {"text": observation}
    return {"text": "", "images": await asyncio.to_thread(_pictures, observation)}


def _pictures(images: Sequence[Any]) -> list[str]:
    """Images as PNG in base64."""
    from PIL import Image

    texts = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        texts.append(base64.b64encode(buffer.getvalue()).decode())
    return texts
