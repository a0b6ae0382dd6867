"""Sessions of clients: one episode at a time on the environment service, which a lost connection does not end.

::

    WebSocket or HTTP            Sessions                       EnvService (ragen.agent_loop.service)
      attach(token) ---------->  ServedSession ---------------> lanes: worker processes
      reset, step, state         |  agent_loop's Session: replays where an environment was lost
                                 |  JournalFile: the same turns on disk, if there is a folder for them

A client resumes a session by its token; a session without a token ends with its connection. The calls of a session
run one after another. They must not be cancelled: a call that has begun is finished even if its client is gone. A call
is in the journal before it is answered. A call that fails, or that cannot be journaled, has not happened.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from envlanes.ragen.journal import JournalFile
from envlanes.ragen.seeds import SEED_LIMIT, checked_seed
from envlanes.ragen.turn import Observation, Turn
from ragen.agent_loop.service import EnvService, read_entry
from ragen.agent_loop.session import Session
from ragen.errors import (
    ConfigError,
    EpisodeOverError,
    InputError,
    RagenError,
    ServiceFullError,
    SessionLostError,
    StateError,
    in_short,
)
from ragen.files import json_text
from ragen.llm_agent.prompts.replies import sent_actions

MODES = ("train", "val")
LONGEST_ID = 200
"""Maximum length of an id that a client chooses, in characters."""
RESTARTS = 20
"""Number of times that a worker may be killed during one turn before its environment is considered the cause."""
ENDED, RESUMABLE = 1000, 1001
"""WebSocket's close codes for a connection whose session has ended for good, or goes on from its journal."""
Answer = dict[str, Any]


@dataclass(frozen=True)
class ServeSettings:
    """The environments that a server offers, and its limits.

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
    idle_timeout: float = 3600
    journal_dir: Path | None = None
    action_sep: str = "||"
    max_actions_per_turn: int | None = None


class _Episode(NamedTuple):
    """An episode, and the last line of its journal: the number of turns, the actions left, the last answer."""

    session: Session
    head: dict[str, Any]  # env, seed, mode, episode_id
    last: dict[str, Any]


class Sessions:
    """All sessions of a server; used in one event loop."""

    def __init__(self, settings: ServeSettings) -> None:
        """Check the configuration; workers start with the first environment.

        Args:
            settings: The environments and limits.

        Raises:
            ConfigError: The configuration is invalid, or the folder for journals cannot be created.
        """
        self.settings = settings
        managed = settings.config.get("es_manager") or {}
        restarts = max(RESTARTS, managed.get("max_restarts") or 0)
        sections = {**settings.config, "es_manager": {**managed, "max_restarts": restarts}}
        self.named = {tag: _action_names(sections, tag) for tag in settings.tags}
        self.service = EnvService(sections)
        if settings.journal_dir is not None:
            try:
                settings.journal_dir.mkdir(0o700, parents=True, exist_ok=True)  # turns may hold anything
            except OSError as error:
                raise ConfigError(f"--journal-dir {settings.journal_dir}: {error.strerror}.") from error
        self._open: dict[str, ServedSession] = {}

    def __len__(self) -> int:
        """The number of open sessions."""
        return len(self._open)

    def attach(self, token: str | None) -> ServedSession:
        """The session of a token, created on first use; None creates one that ends with its connection.

        Raises:
            InputError: The token is empty or too long.
            ServiceFullError: The maximum number of sessions is open.
        """
        key = _checked_id("the token of a session", token) or f"/{secrets.token_hex(16)}"  # no token has a slash
        session = self._open.get(key)
        if session is None:
            if len(self._open) >= self.settings.max_sessions:
                raise ServiceFullError(
                    f"{len(self._open)} sessions are open, and there may be {self.settings.max_sessions}; close one, "
                    "or start the server with a higher --max-sessions."
                )
            folder, path = self.settings.journal_dir, None
            if token is not None and folder is not None:
                # named after the hash of the token, which is not stored itself
                path = folder / f"{sha256(token.encode()).hexdigest()[:40]}.jsonl"
            session = self._open[key] = ServedSession(self, key, path)
        session.used = time.monotonic()
        session.holders += 1
        return session

    async def leave(self, session: ServedSession) -> None:
        """Let go of an attached session; it ends if it has no token, or no episode and nothing else that holds it."""
        session.holders -= 1
        if not session.holders and (session.key.startswith("/") or not session.has_episode):
            await session.end()

    def drop(self, session: ServedSession) -> None:
        """Forget a session that has ended or could not be loaded."""
        if self._open.get(session.key) is session:
            del self._open[session.key]

    async def sweep(self) -> None:
        """Close idle sessions, which resume from their journals when their clients return."""
        await self._end_idle(time.monotonic() - self.settings.idle_timeout)

    async def shut_down(self) -> None:
        """Close all environments and end the workers; journals stay."""
        await self._end_idle(math.inf)
        await self.service.shut_down()

    async def _end_idle(self, until: float) -> None:
        """End the sessions without a call after a time; that of a call under way keeps its journal locked."""
        for session in [each for each in self._open.values() if each.used < until and not each.is_busy]:
            await session.end()


class ServedSession:
    """One client's session.

    Attributes:
        key: Its token, or a generated name.
        used: Time of its last call, in seconds of the monotonic clock.
        holders: Number of calls and connections that are attached.
        on_end: Closes the connection that holds the session; None if there is none.
    """

    def __init__(self, sessions: Sessions, key: str, journal: Path | None) -> None:
        """Begin without an episode; the first call reads the journal, if any."""
        self.key = key
        self.used = time.monotonic()
        self.holders = 0
        self.on_end: Callable[[int], Awaitable[None]] | None = None
        self._sessions = sessions
        self._path = journal
        self._journal: JournalFile | None = None
        self._is_loaded = False
        self._episode: _Episode | None = None
        self._lock = asyncio.Lock()
        self._has_ended = False

    @property
    def has_episode(self) -> bool:
        """Whether there is an episode in memory."""
        return self._episode is not None

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way."""
        return self._lock.locked()

    async def call(self, kind: str, data: Mapping[str, Any], request_id: Any = None) -> Answer:
        """Answer a call; one with the id of the last reset or step gets the same answer, and is not played again.

        Args:
            kind: ``reset``, ``step`` or ``state``.
            data: Of a reset any of ``env``, ``seed``, ``mode`` and ``episode_id``; of a step ``{"text": ...}``.
            request_id: The client's id of this call, if any.

        Raises:
            InputError: A value is invalid.
            StateError: There is no episode, or it is over.
            RagenError: The call was not played; the episode is as it was.
        """
        _checked_id("request_id", request_id)
        async with self._lock:
            if self._has_ended:
                raise StateError("this session has ended; connect again.")
            await self._load()
            episode = self._episode
            try:
                if kind == "state":
                    return self._state()
                if request_id is not None and episode is not None and episode.last["request_id"] == request_id:
                    return episode.last["answer"]
                if kind == "reset":
                    return await self._reset(request_id, self._head(data))
                return await self._step(request_id, _checked_text(data))
            finally:
                self.used = time.monotonic()

    async def end(self, keeps_journal: bool = True) -> None:
        """Close the environment and the connection."""
        async with self._lock:
            self._has_ended = True
            if not keeps_journal:
                with suppress(RagenError):
                    await self._load()  # it locks the journal
            is_kept = keeps_journal and self._episode is not None
            await self._disk(JournalFile.close if is_kept else JournalFile.remove)
            episode, self._episode = self._episode, None
            if episode is not None:
                await episode.session.close()
            self._sessions.drop(self)
        if self.on_end is not None:
            await self.on_end(RESUMABLE if keeps_journal else ENDED)

    async def _disk(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the journal in a thread, if there is a journal."""
        return None if self._journal is None else await asyncio.to_thread(call, self._journal, *arguments)

    async def _load(self) -> None:
        if self._is_loaded or self._path is None:
            return
        try:
            self._journal = journal = await asyncio.to_thread(JournalFile, self._path)
            begun = max((place for place, each in enumerate(journal.events) if "head" in each), default=0)
            lines = journal.events[begun:]
            if lines and ["head" in lines[0], *(each["turn"] for each in lines)] != [True, *range(len(lines))]:
                raise ConfigError("the lines of its journal do not follow one another; remove it to begin anew.")
        except BaseException as error:
            self._has_ended = True
            await self._disk(JournalFile.close)
            self._sessions.drop(self)
            if isinstance(error, ConfigError | LookupError | TypeError):
                raise SessionLostError(f"the session cannot go on: {error}") from error
            raise
        self._is_loaded = True
        if lines:
            head, first = lines[0]["head"], lines[0]["first"]
            asked = [Turn(tuple(each["actions"]), before["left"]) for before, each in pairwise(lines)]
            played = zip(asked, [each["recorded"] for each in lines[1:]], strict=True)
            self._episode = _Episode(self._session(head, first, played), head, lines[-1])

    def _session(self, head: Mapping[str, Any], *played: Any) -> Session:
        return Session(self._sessions.service, head["env"], head["seed"], head["mode"], *played)

    async def _reset(self, request_id: str | None, head: dict[str, Any]) -> Answer:
        before, session = self._episode, self._session(head)
        try:
            opened = await session.open()
            about = {"turn": 0, **{name: head[name] for name in ("env", "seed", "episode_id")}}
            answer = await _answer(opened.observation, None, False, about)
            line = {"head": head, "first": session.first, "turn": 0, "left": opened.max_actions}
            line |= {"request_id": request_id, "answer": answer}
            # Appended before earlier episodes are dropped, so that a full disk leaves these.
            await self._disk(JournalFile.write, [line], True)
            await self._disk(partial(JournalFile.write, anew=True), [line], True)
        except BaseException:
            await session.close()
            raise
        self._episode = _Episode(session, head, line)
        if before is not None:
            await before.session.close()
        return answer

    async def _step(self, request_id: str | None, text: str) -> Answer:
        episode = self._episode
        if episode is None:
            raise StateError("there is no episode yet; send reset first.")
        turn, left = episode.last["turn"], episode.last["left"]
        if episode.last["answer"]["done"]:
            raise EpisodeOverError(f"the episode is over after {turn} turns; send reset.")
        settings, env = self._sessions.settings, episode.head["env"]
        actions = sent_actions(text, settings.action_sep if self._sessions.named[env] else None)
        actions = actions[: settings.max_actions_per_turn]
        try:
            result = await episode.session.play(actions, left)
            left -= len(result.executed)
            is_over = bool(result.done) or left <= 0
            is_cut = is_over and not (result.done and "env_error" not in result.info)
            about: dict[str, Any] = {"turn": turn + 1, "malformed": result.malformed, "actions_left": left}
            about |= {"info": result.info, "truncated": is_cut}
            # the reward is the environment's own, without the format penalty
            answer = await _answer(result.observation, float(result.reward), is_over, about)
            line = {"turn": turn + 1, "actions": actions, "recorded": episode.session.played[-1][1], "left": left}
            line |= {"request_id": request_id, "answer": answer}
            await self._disk(JournalFile.write, [line], True)
        except BaseException:  # the turn has not happened
            await episode.session.rewind(turn)
            raise
        self._episode = episode._replace(last=line)
        return answer

    def _state(self) -> Answer:
        episode = self._episode
        if episode is None:
            return {"episode_id": None, "step_count": 0}
        head = {name: episode.head[name] for name in ("episode_id", "env", "seed", "mode")}
        last = episode.last
        return {**head, "step_count": last["turn"], "actions_left": last["left"], "done": last["answer"]["done"]}

    def _head(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The beginning of an episode, from the data of a reset."""
        tags = self._sessions.settings.tags
        env, mode, seed = data.get("env") or tags[0], data.get("mode") or "train", data.get("seed")
        for name, value, allowed in (("env", env, tags), ("mode", mode, MODES)):
            if value not in allowed:
                raise InputError(f"{name} is {in_short(value)}; expected one of {', '.join(allowed)}.")
        seed = secrets.randbelow(SEED_LIMIT) if seed is None else checked_seed(seed)
        episode_id = _checked_id("episode_id", data.get("episode_id")) or secrets.token_hex(8)
        return {"env": env, "seed": seed, "mode": mode, "episode_id": episode_id}


def _action_names(config: Mapping[str, Any], tag: str) -> tuple[str, ...]:
    """The names of a tag's actions, empty for free text; checks the tag's entry."""
    return tuple((getattr(read_entry(config, tag).spec.config, "action_lookup", None) or {}).values())


def _checked_id(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= LONGEST_ID):
        return value
    raise InputError(f"{name} is {in_short(value)}; expected a text of 1 to {LONGEST_ID} characters.")


def _checked_text(action: Mapping[str, Any]) -> str:
    text, others = action.get("text"), sorted(action.keys() - {"text", "metadata"})
    if not isinstance(text, str) or others:
        wrong = f"unknown fields: {in_short(others)}" if others else f"text is {in_short(text)}"
        raise InputError(f"an action is {{'text': '...'}}, with a text alone; {wrong}.")
    return text


async def _answer(observation: Observation, reward: float | None, done: bool, about: dict[str, Any]) -> Answer:
    """An answer as strict JSON has it, so that it is the same when it is given again from a journal."""
    shown: dict[str, Any] = {"text": observation}
    if not isinstance(observation, str):
        shown = {"text": "", "images": await asyncio.to_thread(_pictures, observation)}
    answer: Answer = json.loads(json_text({"observation": shown, "reward": reward, "done": done, "metadata": about}))
    return answer


def _pictures(images: Sequence[Any]) -> list[str]:
    """Images as PNG in base64."""
    from PIL import Image

    texts = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        texts.append(base64.b64encode(buffer.getvalue()).decode())
    return texts
