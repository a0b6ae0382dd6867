"""The command ``ragen score RUN``: scores a finished run again, without any new request.

There are two ways, and they may be combined.

``--reward PACKAGE.MODULE:FUNCTION``
    A function of a record (see :mod:`~ragen.llm_agent.rollout.trajectories`) that returns the rewards of its turns, or
    the reward of the whole trajectory, which is then that of its last turn, or a mapping with ``rewards`` and
    ``success``. No environment is built.
otherwise
    The environments are built as ``run.json`` says, reset with the run's seeds and given the run's replies, as the
    model wrote them. The same code and configuration give the same rows, byte by byte; so this tells whether an
    environment still does what it did, and what its rewards are under another configuration (``key=value``) or with
    another parser: ``--parser PACKAGE.MODULE:FUNCTION``, a function of a reply that returns the names of its actions.

A reply answers what its model was shown. Where other actions, or another environment, lead to something else, the
trajectory ends there, with ``error``: it is not judged, and says nothing of the model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, described_with_place, in_short
from ragen.output import new_console
from ragen.returned import is_flag
from ragen.settings import override_key

PROG = "ragen score"
SCORED = "scored"
_MAY_DIFFER = ("agent_proxy", "es_manager", "custom_envs", "actor.tokenizer")
Record = dict[str, Any]
Parser = Callable[[str], Sequence[str]]


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Rescore a run without changing its replies: with a function of yours, or by giving its "
        "environments the same replies again. No request is sent, and the run itself is not changed.",
        examples=(
            f"{prog} outputs/evaluate/NAME --reward mine:shaped",
            f"{prog} RUN --parser mine:lenient",
            f"{prog} RUN es_manager.format_penalty=-0.5 -o stricter",
        ),
    )
    top.add_argument("run", type=Path, metavar="RUN", help="the output_dir of a rollout")
    top.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help=f"what differs from the run's configuration: keys of {', '.join(_MAY_DIFFER)}",
    )
    top.add_argument(
        "--reward",
        metavar="PACKAGE.MODULE:FUNCTION",
        help="takes a trajectory's record; returns its turns' rewards, one for the whole trajectory, or "
        "{rewards, success}",
    )
    top.add_argument(
        "--parser", metavar="PACKAGE.MODULE:FUNCTION", help="takes a reply; returns the names of its actions"
    )
    top.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where to write (default: RUN/scored)")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 where the run cannot be scored so.
    """
    from ragen.files import write_whole
    from ragen.llm_agent.evaluation.results import (
        RESULTS,
        evaluate,
        print_results,
        states_of,
        with_pass_at_k,
        write_results,
    )
    from ragen.llm_agent.evaluation.tables import summarise
    from ragen.llm_agent.rollout.rollout_file import (
        ABOUT,
        ROWS,
        USAGE,
        about_run,
        put_aside,
        read_about,
        read_records,
        read_usage,
        rows_of,
        unfinished,
    )
    from ragen.llm_agent.rollout.trajectories import line_of, write_jsonl
    from ragen.settings import function_at

    rows = rows_of(options.run)
    reward = None if options.reward is None else function_at(options.reward, "--reward")
    parse = None if options.parser is None else function_at(options.parser, "--parser")
    records = read_records(rows)
    if not records:
        raise ConfigError(f"{rows} has no trajectory.")
    about = read_about(rows.with_name(ABOUT))
    folder = options.output or rows.with_name(SCORED)
    _check_output(folder, rows, options.run)
    new, size = records, about.get(f"es_manager.{about.get('mode')}.group_size")
    if reward is None or parse is not None or options.overrides:
        config = config_of(about, options.overrides)
        new = played_again(records, config, parse)
        actor = {name: value for name, value in about.items() if name.startswith("actor")}
        about = about_run(config, str(config["mode"])) | actor
    if reward is not None:
        new = [rewarded(record, reward, options.reward) for record in new]
    if isinstance(size, int):
        new = with_pass_at_k(new, size)
    results, usage = evaluate(new), read_usage(rows.with_name(USAGE))
    try:
        if (earlier := put_aside(folder / ROWS)) is not None:
            print(f"the files of the previous score are now in {earlier}", file=sys.stderr)
        write_jsonl(new, folder / ROWS)
        scored = {
            "scored.run": str(options.run.absolute()),
            "scored.reward": options.reward,
            "scored.parser": options.parser,
        }
        write_whole(folder / ABOUT, json.dumps(about | scored, indent=1, ensure_ascii=False) + "\n")
        write_results(results, usage, folder / RESULTS)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}; name another with --output.") from error
    console = new_console(is_plain=True)
    penalty = about.get("es_manager.format_penalty")
    print_results(console, results, {}, summarise(states_of(new), penalty if isinstance(penalty, int | float) else 0))
    if told := unfinished(folder / ROWS, new):
        console.print(told, soft_wrap=True)
    lines = [(line_of(one), line_of(other)) for one, other in zip(records, new, strict=True)]
    differing = sum(one != other and json.loads(one) != json.loads(other) for one, other in lines)  # 1 equals 1.0
    ended = sum("error" in other and "error" not in one for one, other in zip(records, new, strict=True))
    console.print(f"{differing} of {len(new)} trajectories differ from those of {options.run}", soft_wrap=True)
    if ended:
        console.print(f"{ended} of them end early, where their replies answer something else", soft_wrap=True)
    console.print(f"rows in {folder / ROWS}", soft_wrap=True)
    return 0


def _check_output(folder: Path, rows: Path, run: Path) -> None:
    """See that nothing but an earlier score of the run is moved.

    Raises:
        ConfigError: The folder has files of the run itself, or of another one.
    """
    from ragen.llm_agent.evaluation.results import RESULTS
    from ragen.llm_agent.rollout.rollout_file import ABOUT, ROWS, read_about, rows_of

    if (folder / ROWS).resolve() == rows.resolve():
        raise ConfigError(f"--output is {str(folder)!r}, where the run itself is; name another folder.")
    there = [folder / name for name in (RESULTS, ROWS, ABOUT) if (folder / name).exists()]
    of = None
    with contextlib.suppress(ConfigError):  # the file is missing, or is none of ours
        of = read_about(folder / ABOUT).get("scored.run")
    is_ours = of and (folder.resolve().parent == rows.resolve().parent or rows_of(Path(of)).resolve() == rows.resolve())
    if there and not is_ours:
        raise ConfigError(
            f"{there[0]} is not of a score of {run}, and would be overwritten; name another folder with --output, or "
            "move it."
        )


# By a function


def rewarded(record: Record, reward: Callable[[Record], Any], name: str) -> Record:
    """A record with other rewards; its metric of success follows.

    Args:
        record: Of a trajectory; it is not changed.
        reward: See the module.
        name: The function's, for messages.

    Raises:
        ConfigError: The function raised, or returned something else.
    """
    where, turns = f"--reward {name}, env {record['env_id']}", len(record["rewards"])
    try:
        told = reward(json.loads(json.dumps(record)))
    except Exception as error:  # whatever the function does
        raise ConfigError(f"{where}: it raised {described_with_place(error)}") from error
    values = told if isinstance(told, Mapping) else {"rewards": told}
    if unknown := values.keys() - {"rewards", "success"}:
        raise ConfigError(f"{where}: it returned the key {min(map(str, unknown))!r}; expected rewards and success.")
    success = values.get("success", record["success"])
    if not is_flag(success):
        raise ConfigError(f"{where}: it returned success = {success!r}; expected True or False.")
    given: Any = values.get("rewards", record["rewards"])
    if isinstance(given, str):
        raise ConfigError(f"{where}: it returned the text {in_short(given)}; expected {turns} finite numbers, or one.")
    given = given.tolist() if hasattr(given, "tolist") else given
    rewards = list(given) if isinstance(given, Sequence) else [0.0] * (turns - 1) + [given] if turns else []
    if len(rewards) != turns or not all(map(_is_number, rewards)):
        raise ConfigError(f"{where}: it returned {rewards!r}; expected {turns} finite numbers, one for each turn.")
    metric = f"{record['tag']}/success"
    metrics = record["metrics"]
    if bool(success) != record["success"]:
        metrics = {**metrics, metric: float(bool(success))}
    return {**record, "rewards": rewards, "success": bool(success), "metrics": metrics}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# By the environments


def config_of(about: Mapping[str, Any], overrides: Sequence[str] = ()) -> Any:
    """The configuration of a run, from the flat keys of its ``run.json``.

    Args:
        about: The keys.
        overrides: What differs, in Hydra's syntax.

    Raises:
        ConfigError: A key cannot be changed so, or a value cannot work.
    """
    from omegaconf import OmegaConf, open_dict

    from ragen.llm_agent.config.loading import load_config

    keys = [*map(override_key, overrides)]
    for key in keys:
        if not any(f"{key}.".startswith(f"{allowed}.") for allowed in _MAY_DIFFER):
            raise ConfigError(
                f"{key!r} does not affect a score, since no model is asked; expected a key of {', '.join(_MAY_DIFFER)}."
            )
    config = load_config("base")
    mode = about.get("mode")
    with open_dict(config):
        for replaced in ("custom_envs", "agent_proxy", f"es_manager.{mode}"):
            OmegaConf.update(config, replaced, {}, merge=False)
        for key, value in about.items():
            OmegaConf.update(config, key, value, force_add=True)
        changed = load_config("base", overrides)
        for key in keys:
            OmegaConf.update(config, key, OmegaConf.select(changed, key), force_add=True)
    return config


def played_again(records: Sequence[Record], config: Any, parse: Parser | None = None) -> list[Record]:
    """The records of the same replies, given to environments that are built anew.

    Args:
        records: Of a run, with texts; any of its trajectories.
        config: What to build: :func:`config_of`.
        parse: Reads a reply in the place of the run's own parser.

    Raises:
        ConfigError: The records lack replies, or are of other environments than the configuration's.
    """
    from ragen.llm_agent.backends.factory import create_tokenizer
    from ragen.llm_agent.config.environments import read_config
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import EnvStateManager

    mode = str(config["mode"])
    if any("raw_replies" not in record for record in records):
        raise ConfigError("the rows have no 'raw_replies' (raw=false, or an earlier version): score with --reward.")
    ctx_manager = ContextManager(config, create_tokenizer(config, light=True), mode=mode)
    es_manager = EnvStateManager(config, mode=mode)
    try:
        max_turn, numbers = int(config["agent_proxy"]["max_turn"]), read_config(config, mode).group_numbers
        game = _Game(records, mode, es_manager, ctx_manager, parse, max_turn, numbers)
        counts = {record["env_id"]: min(len(record["raw_replies"]), max_turn) for record in records}
        played = game.play(counts)
        apart = dict(game.differences(played))
        return game.play(counts | apart) if apart else played
    finally:
        es_manager.close()


class _Game:
    """Gives recorded replies to environments."""

    def __init__(
        self,
        records: Sequence[Record],
        mode: str,
        es_manager: Any,
        ctx_manager: Any,
        parse: Parser | None,
        max_turn: int,
        group_numbers: Sequence[int],
    ) -> None:
        """Take the parts; see :func:`played_again`."""
        self._records = {record["env_id"]: record for record in records}
        self._mode, self._es_manager, self._ctx_manager = mode, es_manager, ctx_manager
        self._parse, self._max_turn, self._group_numbers = parse, max_turn, group_numbers

    def play(self, counts: Mapping[int, int]) -> list[Record]:
        """Play from the reset on.

        Args:
            counts: How many of its replies each environment is given.

        Returns:
            The new records, in the order of the old ones.
        """
        first = next(iter(self._records.values()))
        caches = self._es_manager.reset(None if first["seed"] is None else self._seed_of_group_0(first))
        self._check(caches)
        active = [cache for cache in caches if cache["env_id"] in self._records]
        ended: dict[int, str] = {}
        while active:
            going_on = [cache for cache in active if len(cache["history"]) <= counts[cache["env_id"]]]
            for cache in active:
                env_id, turn = cache["env_id"], len(cache["history"]) - 1
                if turn == counts[env_id] and turn < self._max_turn:
                    ended[env_id] = self._why(self._records[env_id], turn)
            active = self._es_manager.step(self._inputs(going_on)) if going_on else []
        states = {state["env_id"]: state for state in self._es_manager.get_rollout_states()}
        return [self._record(states[env_id], ended.get(env_id)) for env_id in self._records]

    def _seed_of_group_0(self, record: Record) -> int:
        group = record["group_id"]
        if group >= len(self._group_numbers):
            raise ConfigError(f"env {record['env_id']} of the rows is of group {group}, which the configuration lacks.")
        return max(0, record["seed"] - self._group_numbers[group])

    def _check(self, caches: Sequence[Mapping[str, Any]]) -> None:
        entries = {entry["env_id"]: (entry["tag"], entry["status"].seed) for entry in self._es_manager.envs}
        for env_id, record in self._records.items():
            if entries.get(env_id) != (record["tag"], record["seed"]):
                raise ConfigError(
                    f"env {env_id} of the rows is of tag {record['tag']!r} and seed {record['seed']}, and the "
                    f"configuration gives {entries.get(env_id, 'none')}; are the rows those of its run.json?"
                )

    def _inputs(self, caches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        from ragen.llm_agent.tokens.dataproto import PromptBatch, object_array

        replies = [self._records[cache["env_id"]]["raw_replies"][len(cache["history"]) - 1] for cache in caches]
        ids = object_array(cache["env_id"] for cache in caches)
        inputs = self._ctx_manager.get_env_inputs(
            PromptBatch({"env_ids": ids, "response_texts": object_array(replies)})
        )
        if self._parse is None:
            return inputs
        each = zip(inputs, caches, replies, strict=True)
        return [one | {"actions": self._actions(cache, reply)} for one, cache, reply in each]

    def _actions(self, cache: Mapping[str, Any], reply: str) -> list[str]:
        assert self._parse is not None
        where = f"--parser, env {cache['env_id']}, turn {len(cache['history'])}"
        try:
            told = self._parse(reply)
            actions = [] if isinstance(told, str) else list(told)
        except Exception as error:  # whatever the function does
            raise ConfigError(f"{where}: it raised {described_with_place(error)}") from error
        if isinstance(told, str):
            raise ConfigError(f"{where}: it returned the text {told!r}; expected a list of actions' names.")
        if wrong := [action for action in actions if not isinstance(action, str)]:
            raise ConfigError(f"{where}: it returned {wrong[0]!r} among its actions; expected their names.")
        return actions

    def _record(self, state: Mapping[str, Any], ended: str | None) -> Record:
        from ragen.llm_agent.rollout.trajectories import line_of, trajectory

        old = self._records[state["env_id"]]
        told = old.get("replies")
        replies = None if told is None else told[: len(state["history"]) - 1]
        chat = self._ctx_manager.transcript(state)
        invalid, names = self._es_manager.invalid_turns(state["env_id"]), old.get("action_names")
        new = trajectory(state, chat, old["seed"], self._mode, invalid, ended, replies, names=names)
        return json.loads(line_of(new))

    @staticmethod
    def _why(record: Record, turn: int) -> str:
        if turn < len(record["raw_replies"]):
            return f"the reply of turn {turn + 1} answers a different observation than the environment shows now"
        return record.get("error", f"the run has no reply for turn {turn + 1}, which it did not reach")

    def differences(self, played: Sequence[Record]) -> Iterator[tuple[int, int]]:
        """Environments that have shown something else than in the run, and how many replies answer the same."""
        from ragen.llm_agent.evaluation.scanners import states_shown

        for new in played:
            shown = zip(states_shown(self._records[new["env_id"]]), states_shown(new), strict=False)
            for turn, (before, now) in enumerate(shown):
                if before != now:
                    yield new["env_id"], turn
                    break
