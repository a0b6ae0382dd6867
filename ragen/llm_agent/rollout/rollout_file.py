"""``rollouts.jsonl`` while it is written: an episode's record is added as soon as the episode is finished.

A killed run therefore keeps all finished episodes; a resumed one (``resume: true``) plays the others.
``run.json`` beside it describes what was played; a run with a different configuration cannot resume it. ``usage.json``
has the usage of all runs of the file, including unfinished and failed episodes. Episodes that ended because a prompt
got no reply, or whose environment failed, are played again; the journal, ``journal.jsonl``, has replies that they and
unfinished episodes had received, which are not requested again. A run that starts over moves the files of an earlier
one aside.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import ragen
from envlanes.closing import Closing
from envlanes.ragen.metrics import add_pass_at_k
from ragen.config.command_line import called_as
from ragen.config.loading import as_config, changed_settings, decisive_settings
from ragen.errors import ConfigError, StorageError, shown_path
from ragen.files import json_text, why_no_folder, write_whole
from ragen.llm_agent.backends.reply_journal import ReplyJournal, has_replies
from ragen.llm_agent.rollout.trajectories import write_jsonl
from ragen.output import shown_address, shown_words
from ragen.results.rows import (
    ABOUT,
    JUDGED,
    PAGE,
    RECORDED,
    REPLIES,
    USAGE,
    outcome,
    read_about,
    read_rows,
)

ASIDE = "earlier"
_WITH_IT = (*RECORDED, PAGE)


def put_aside(path: Path) -> Path | None:
    """Move a rollout's file, and those beside it, into a folder of their own.

    Args:
        path: The file.

    Returns:
        The folder, ``earlier/1`` beside the file, or with the first number that is free; None if there was no file.

    Raises:
        OSError: They cannot be moved.
    """
    left = [each for each in (path, *map(path.with_name, _WITH_IT)) if each.exists()]
    if not left:
        return None
    numbers = (path.with_name(ASIDE) / str(number) for number in itertools.count(1))
    folder = next(each for each in numbers if not each.exists())
    folder.mkdir(parents=True)
    for each in left:
        os.replace(each, folder / each.name)
    return folder


class RolloutFile(Closing):
    """The records of a run. Nothing is written before ``begin``.

    A context manager that closes the file.

    Attributes:
        path: Of the file.
        kept: Records of episodes finished by an earlier run, by environment id.
        written: Number of episodes in the file that got all their replies.
        journal: The journal of replies, if one was opened.
        set_aside: The folder to which ``begin`` has moved the files of another run, if there were any.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], resume: bool = False) -> None:
        """Read the files of an earlier run.

        Args:
            path: Of the file.
            about: Description of the rollout, as flat keys.
            resume: Whether to keep the finished episodes of the file, if it is there.

        Raises:
            ConfigError: The earlier run played something else, or its files cannot be read.
        """
        self.path = path
        self._about = json.loads(json_text(dict(about)))
        self._file: TextIO | None = None
        self._lock: int | None = None
        self._resumes = resume
        self.journal: ReplyJournal | None = None
        self.set_aside: Path | None = None
        self.kept: dict[int, dict[str, Any]] = {}
        self.written = 0
        self._read_kept()

    def _read_kept(self) -> None:
        """Read the folder's files; repeated in ``begin``, when no other run can write to it."""
        self.kept = {}
        if self._resumes and self.path.exists():
            records = [record for record in read_rows(self.path) if outcome(record) == JUDGED]
            try:
                self._check_about()
            except ConfigError:
                if any(record["actions"] for record in records) or has_replies(self.path.with_name(REPLIES)):
                    raise
                records = []  # nothing was answered with other settings, so nothing is lost
            self.kept = {record["env_id"]: record for record in records}
        self.written = len(self.kept)

    def _check_about(self) -> None:
        try:
            before = {name: value for name, value in read_about(self.path.with_name(ABOUT)).items() if name != "run"}
        except ConfigError as error:
            raise ConfigError(
                f"'resume' is true, and {error} Use another 'output_dir', or resume=false to start over."
            ) from error
        # Tags come first, since other keys differ because of them.
        for key, old, new in sorted(
            changed_settings(before, self._about), key=lambda each: "env_configs" not in each[0]
        ):
            raise ConfigError(
                f"'resume' is true, and configuration key {key!r} was {old} when {shown_path(self.path)} was started "
                f"and is {new} now; use another 'output_dir', or resume=false to start over."
            )

    def begin(self, run: Mapping[str, Any] | None = None) -> None:
        """Make the folder and the files; they are this run's until ``close``.

        Args:
            run: A description of this run, see :func:`describe_run`.

        Raises:
            ConfigError: They cannot be made, or another run is writing them.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = locked(self.path.parent)
            if not self._resumes:
                self.set_aside = put_aside(self.path)
            self._read_kept()
            about = json_text({**self._about, **({"run": run} if run else {})}, indent=1) + "\n"
            write_whole(self.path.with_name(ABOUT), about, durable=True)
            write_jsonl(self.kept.values(), self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            folder = self.path.parent
            why = why_no_folder(folder, error)
            raise ConfigError(f"configuration key 'output_dir' is {shown_path(folder)!r}: {why}.") from error

    def open_journal(self) -> ReplyJournal:
        """Open the journal of replies, after ``begin``; it continues with the usage.

        Raises:
            ConfigError: It cannot be written.
        """
        self.journal = ReplyJournal(self.path.with_name(REPLIES))
        return self.journal

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the records of finished episodes."""
        assert self._file is not None, "begin() comes first"
        with self._storing():
            for record in records:
                self._file.write(json_text(record) + "\n")
                self.written += "error" not in record
            self._file.flush()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Raise a ``StorageError`` if the folder cannot be written to."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{shown_path(self.path.parent)} cannot be written to: {error.strerror or error}. What was answered is "
                "kept; make room there, and resume the run."
            ) from error

    def count(self, usage: Mapping[str, float]) -> None:
        """Write the usage of all runs so far."""
        self.write_beside(USAGE, json_text(usage) + "\n")

    def write_beside(self, name: str, text: str) -> None:
        """Replace a file beside that of the rows."""
        with self._storing():
            write_whole(self.path.with_name(name), text)

    def finish(self, group_size: int) -> list[dict[str, Any]]:
        """Sort the file by environment id, and add its group's ``pass@k`` to each record.

        Returns:
            All records, including those of earlier runs.
        """
        self._close_rows()
        with self._storing():
            records = sorted(read_rows(self.path), key=lambda record: record["env_id"])
            add_pass_at_k(records, group_size)
            write_jsonl(records, self.path)
        return records

    def close(self) -> None:
        """Close the file and the journal; may be called twice."""
        self._close_rows()
        if self.journal is not None:
            self.journal.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _close_rows(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # errors were raised when the records were added
                file.close()


def locked(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed; None if the system has no such locks.

    Raises:
        ConfigError: Another run holds the lock.
    """
    try:
        import fcntl

        opened = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise ConfigError(
            f"another run is writing to {shown_path(folder)}; wait until it ends, or use another 'output_dir'."
        ) from None
    except OSError:
        os.close(opened)
        return None
    return opened


def about_run(config: Any, mode: str) -> dict[str, Any]:
    """The settings that determine the trajectories, as flat keys, without those that only affect speed.

    Raises:
        ConfigError: A key cannot be read.
    """
    section = f"es_manager.{mode}"
    tags = as_config(config).select(f"{section}.env_configs.tags")
    chosen = (
        *(f"seed.{mode}", section, "es_manager.format_penalty", "agent_proxy"),
        *(f"custom_envs.{tag}" for tag in tags),
        *("actor_rollout_ref.rollout", "actor_rollout_ref.model.path"),
        *(f"actor.{key}" for key in ("backend", "model", "tokenizer", "scripted", "openai.request")),
    )
    about = {"mode": mode} | decisive_settings(config, chosen)
    if as_config(config).actor.model is None:  # the model is then determined by the server
        about["actor.base_url"] = shown_address(as_config(config).actor.base_url or "") or None
    return about


def describe_run(config: Any) -> dict[str, Any]:
    """A description of the run that begins now, without secrets.

    Args:
        config: The whole configuration.

    Returns:
        ``began`` (local time with its UTC offset), ``version``, ``server`` (None for the default one, or none) and
        ``command`` (empty if no command runs).

    Raises:
        ConfigError: A key cannot be read.
    """
    return {
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "version": f"ragen {ragen.__version__}, Python {platform.python_version()}",
        "server": shown_address(as_config(config).actor.base_url or "") or None,
        "command": " ".join(filter(None, [*called_as()[:1], shown_words(called_as()[1:])])),
    }
