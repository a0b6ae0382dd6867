"""Compare the manager of a checkout of RAGEN with :class:`envlanes.ragen.EnvStateManager`, which takes its place.

    python -m envlanes.ragen.prove CHECKOUT [--tags A,B]

The manager that stood in the checkout comes from git. Both play every tag of ``config/envs.yaml``, in training and
validation: as configured, and in long episodes; ours in all modes, also with workers killed before each turn. Every
state, image, reward, info, penalty, metric, status, seed counter and the order of outputs must be equal, types too.
Nothing in the checkout is changed.

Exit code: 0 all that was played is equal, 1 something differs, 2 refused, 3 nothing was played, or not all ``--tags``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from envlanes.episode.outcome import describe
from envlanes.errors import ConfigError, EnvLanesError, did_you_mean

EQUAL, DIFFERENT, REFUSED, NOT_PLAYED = range(4)
MANAGER = "ragen/llm_agent/es_manager.py"
NAME = "EnvStateManager"
OURS = "envlanes.ragen"
# All that RAGEN's manager has, in either year: bases, methods, parameters of public methods, public attributes.
KNOWN = {
    "object",
    "__init__",
    "__init__(config)",
    "__init__(mode)",
    "reset",
    "reset(seed)",
    "step",
    "step(all_env_inputs)",
    "render",
    "close",
    "get_rollout_states",
    "__del__",
    "_shutdown_executors",
    "_init_envs",
    "_init_env_instances",
    "_register_parallel_executors",
    "_update_cache_history",
    "_extract_map_valid_actions",
    "_handle_mm_state",
    "self.sys_config",
    "self.mode",
    "self.config",
    "self.env_groups",
    "self.group_size",
    "self.base_seed",
    "self.seed_counter",
    "self.envs",
    "self.rollout_cache",
}
OTHER_DOOR = (
    f"keep {MANAGER}, and host its environments in workers: REGISTERED_ENVS = hosted(REGISTERED_ENVS) at the end of "
    f"ragen/env/__init__.py, after `from {OURS} import hosted`"
)
CHILD = "ENVLANES_PROVE"
EXAMPLES = ("1 + 2", "3 - 1", "5 * 2", "Left", "up", "42", "\\boxed{4}")  # for an environment without action names
WAYS: dict[str, tuple[Any, bool]] = {
    "false": (False, False),
    "true": (True, False),
    "true, workers killed": (True, True),
    "auto": ("auto", False),
    "auto, workers killed": ("auto", True),
}


class Length(NamedTuple):
    """A plan of play: episodes, turns, the most actions (None as configured), seeds, and ways."""

    episodes: int
    turns: int
    most: int | None
    seeds: Mapping[str, int]
    ways: Iterable[str]


LENGTHS = (
    Length(2, 5, None, {"train": 10_000, "val": 123}, WAYS),
    # numpy adds eight numbers and more in another order
    Length(1, 14, 60, {"train": 10_977, "val": 154}, ("false", "true, workers killed")),
)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m envlanes.ragen.prove", description=about, allow_abbrev=False)
    parser.add_argument("checkout", type=Path, help="folder of the checkout")
    parser.add_argument("--tags", default="", help="comma-separated; all of config/envs.yaml by default")
    options = parser.parse_args(arguments)
    if os.environ.get(CHILD) != str(os.getppid()):
        # Strings hash alike in all processes, and nothing is written beside sources.
        own = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", CHILD: str(os.getpid())}
        command = [sys.executable, "-m", __spec__.name, *(sys.argv[1:] if arguments is None else arguments)]
        return subprocess.run(command, env=os.environ | own, check=False).returncode
    try:
        return prove(options.checkout.resolve(), [tag for tag in options.tags.split(",") if tag])
    except EnvLanesError as error:
        print(f"refused: {error}", file=sys.stderr)
        return REFUSED


def prove(checkout: Path, only: list[str]) -> int:
    """Compare, and print a line for each tag and mode; returns the exit code.

    Raises:
        ConfigError: There is nothing to compare, or it cannot be judged.
    """
    source, where = own_source(checkout)
    check_replaceable(source, where)
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    custom_envs = _custom_envs(checkout)
    for tag in only:
        if tag not in custom_envs:
            meant = did_you_mean(tag, custom_envs) or f" There are {', '.join(custom_envs)}."
            raise ConfigError(f"--tags: config/envs.yaml has no tag {tag!r}.{meant}")
    logging.disable(logging.WARNING)
    own = _loaded(source, where)
    try:
        ours = importlib.import_module("ragen.llm_agent.es_manager" if _is_ours(_text(checkout)) else OURS)
        envs = importlib.import_module("ragen.env").REGISTERED_ENVS
    except ImportError as error:
        raise ConfigError(f"the checkout cannot be imported: {describe(error)}.") from error
    proof = _Proof(getattr(own, NAME), getattr(ours, NAME), envs, custom_envs)
    print(f"{where} and {OURS}, Python {sys.version.split()[0]}", flush=True)
    tags = only or list(custom_envs)
    played = [tag for tag in tags if proof.compare([tag])]
    if len(played) > 1:
        proof.compare(played)
    numbers = f"{proof.equal} of {proof.equal + proof.different} tags x modes are equal"
    ways = "; ".join(WAYS)
    print(f"{numbers} (each in {ways}: {proof.kills} killed); not played: {', '.join(proof.silent) or 'none'}")
    if proof.different:
        return DIFFERENT
    return NOT_PLAYED if not played or (only and proof.silent) else EQUAL


# Comparisons


def own_source(checkout: Path) -> tuple[str, str]:
    """The source of the checkout's own manager, and where it was found.

    Raises:
        ConfigError: There is none.
    """
    if not (checkout / MANAGER).is_file():
        raise ConfigError(f"{checkout} is no checkout of RAGEN: there is no {MANAGER}.")
    if not _is_ours(_text(checkout)):
        return _text(checkout), MANAGER
    for revision in _git(checkout, "log", "--format=%h", "--", MANAGER).split():
        source = _git(checkout, "show", f"{revision}:./{MANAGER}")
        if source and not _is_ours(source):
            return source, f"{revision}:{MANAGER}"
    raise ConfigError(f"{checkout / MANAGER} is ours already, and git has no version before: nothing to compare with.")


def check_replaceable(source: str, where: str) -> None:
    """Check that the checkout's own manager has no more than RAGEN's.

    Raises:
        ConfigError: It has methods, parameters, attributes or bases of its own.
    """
    own = next((n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == NAME), None)
    if own is None:
        raise ConfigError(f"{where} defines no class {NAME}.")
    found = list(map(ast.unparse, own.bases))
    for method in own.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(method.name)
            if method.name == "__init__" or not method.name.startswith("_"):
                names = [each.arg for each in ast.walk(method.args) if isinstance(each, ast.arg)]
                found += [f"{method.name}({name})" for name in names if name != "self"]
    for node in ast.walk(own):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not node.attr.startswith("_"):
            found += [ast.unparse(node)] if ast.unparse(node.value) == "self" else []
    if more := [each for each in dict.fromkeys(found) if each not in KNOWN]:
        raise ConfigError(f"{where} has {', '.join(more)}, which RAGEN's manager has not: {OTHER_DOOR}.")


def _is_ours(source: str) -> bool:
    """Whether a file takes the manager from here."""
    return re.search(rf"^from {re.escape(OURS)}\b", source, re.MULTILINE) is not None


def _text(checkout: Path) -> str:
    return (checkout / MANAGER).read_text("utf-8")


def _git(checkout: Path, *arguments: str) -> str:
    """The output of git in the checkout; "" where it fails, or there is no git."""
    with contextlib.suppress(OSError):
        command = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
        return done.stdout if done.returncode == 0 else ""
    return ""


def _loaded(source: str, where: str) -> ModuleType:
    """The checkout's own manager as a module beside ours.

    Raises:
        ConfigError: It cannot be imported.
    """
    name = "ragen.llm_agent.own_es_manager"
    module = ModuleType(name)
    module.__file__, module.__package__ = MANAGER, "ragen.llm_agent"
    sys.modules[name] = module  # dataclasses look it up there
    try:
        importlib.import_module("ragen.llm_agent")
        exec(compile(source, where, "exec"), vars(module))
    except Exception as error:
        raise ConfigError(f"{where} cannot be imported here: {describe(error)}.") from error
    return module


def _custom_envs(checkout: Path) -> dict[str, Any]:
    path = checkout / "config" / "envs.yaml"
    try:
        from omegaconf import OmegaConf

        found: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        return {str(tag): {"env_config": None, **entry} for tag, entry in found["custom_envs"].items()}
    except Exception as error:
        raise ConfigError(f"{path} cannot be read: {describe(error)}.") from error


# Playing


class _Proof:
    """Plays tags with both managers, and counts what was equal."""

    def __init__(self, own: Any, ours: Any, envs: Mapping[str, Any], custom_envs: dict[str, Any]) -> None:
        self._own, self._ours, self._envs = own, ours, envs
        self._custom_envs = custom_envs
        self.equal = self.different = self.kills = 0
        self.silent: list[str] = []

    def compare(self, tags: list[str]) -> bool:
        """Compare tags in one manager, and print the results; whether they could be played."""
        name = tags[0] if len(tags) == 1 else f"{len(tags)} tags together"
        for mode in ("train", "val"):
            homes, differences, silent = set[str](), list[str](), ""
            for length in LENGTHS:
                saved = self._class_counters(tags)
                expected, error = self._play(self._own, tags, mode, length)
                if error:
                    silent = f"with the checkout's own manager, {error}"
                    break
                for way in length.ways:
                    self._restore(saved)
                    got, error = self._play(self._ours, tags, mode, length, *WAYS[way], homes)
                    if found := f"it raised {error}" if error else first_difference(expected, got):
                        differences.append(f"{way}, {length.turns} turns: {found}")
                if differences:
                    self._restore(saved)
                    if self._play(self._own, tags, mode, length)[0] != expected:
                        silent = "the checkout's own manager differs each time"
                        break
            told = f"equal; lived in {', '.join(sorted(homes))}"
            if differences:
                told = f"DIFFERS: {'; '.join(differences[:3])}"
            print(f"  {name:28} {mode:6} {f'not played: {silent}' if silent else told}", flush=True)
            if silent:
                self.silent.append(name)
                return False
            self.different += bool(differences)
            self.equal += not differences
        return True

    def _config(self, tags: list[str], mode: str, length: Length, **es_manager: Any) -> Any:
        from omegaconf import OmegaConf

        groups = {mode: 2 if len(tags) == 1 else 1}
        parts = {
            each: {
                "env_groups": groups.get(each, 1) * len(tags),
                "group_size": 2 if each == mode else 1,
                "env_configs": {"tags": tags, "n_groups": [groups.get(each, 1)] * len(tags)},
            }
            for each in ("train", "val")
        }
        custom_envs = {tag: dict(self._custom_envs[tag]) for tag in tags}
        for entry in custom_envs.values():
            entry["max_actions_per_traj"] = length.most or entry["max_actions_per_traj"]
        return OmegaConf.create(
            {
                "seed": dict(length.seeds),
                "custom_envs": custom_envs,
                "es_manager": {"format_penalty": -0.1, **parts, **es_manager},
                "agent_proxy": {"max_turn": length.turns},
            }
        )

    def _play(
        self,
        kind: Any,
        tags: list[str],
        mode: str,
        length: Length,
        use: Any = None,
        kills: bool = False,
        homes: set[str] | None = None,
    ) -> tuple[list[Any], str]:
        """Everything that a manager shows in two episodes and after, and the error that ended it."""
        own_keys = {"use_multiprocessing": use, "max_workers": 2, "startup_timeout": 200}
        given = self._config(tags, mode, length, **({} if use is None else own_keys))
        seen: list[Any] = []
        _seed_generators()
        with contextlib.ExitStack() as opened:
            try:
                manager = kind(given, mode=mode)
                opened.callback(manager.close)
                for part in _episodes(manager, length, self._kill if kills else lambda manager, turn: None):
                    seen.append(_frozen(part))
                if homes is not None and hasattr(manager, "home"):
                    homes |= {manager.home(entry["env_id"]).split()[0] for entry in manager.envs}
            except Exception as error:
                return seen, describe(error).partition("\n")[0]
        return seen, ""

    def _kill(self, manager: Any, turn: int) -> None:
        """Kill a worker, if there is one."""
        pids = [each.pid for each in manager.lane_stats() if each.pid not in (None, os.getpid())]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[turn % len(pids)], signal.SIGKILL)
                self.kills += 1

    def _class_counters(self, tags: list[str]) -> list[tuple[type, dict[str, int]]]:
        """Numbers that classes keep, such as how many were built, from which each manager starts alike."""
        types = {self._envs.get(self._custom_envs[tag].get("env_type")) for tag in tags}
        family = {each for kind in types if isinstance(kind, type) for each in kind.__mro__}
        return [(k, {n: v for n, v in vars(k).items() if type(v) is int and not n.startswith("__")}) for k in family]

    @staticmethod
    def _restore(saved: list[tuple[type, dict[str, int]]]) -> None:
        for kind, counters in saved:
            for name, value in counters.items():
                if vars(kind)[name] != value:
                    setattr(kind, name, value)


def _episodes(manager: Any, length: Length, disturb: Callable[[Any, int], None]) -> Iterator[Any]:
    for episode in range(length.episodes):
        active = manager.reset()
        yield "reset", active, _statuses(manager)
        for turn in range(length.turns):
            if not active:
                break
            inputs = [_input(manager.envs[cache["env_id"]], episode, turn) for cache in active]
            disturb(manager, turn)
            active = manager.step(inputs)
            yield f"turn {turn}", active, _statuses(manager)
        yield "render", manager.render()
        yield "states", manager.get_rollout_states(), manager.seed_counter
    yield "a seed", manager.reset(seed=777)
    yield "the next", manager.reset(), manager.seed_counter


def _statuses(manager: Any) -> list[dict[str, Any]]:
    return [vars(entry["status"]) for entry in manager.envs]


def _input(entry: Mapping[str, Any], episode: int, turn: int) -> dict[str, Any]:
    """A model's answer: one to three actions, now and then one that is unknown, or none."""
    env_id = entry["env_id"]
    # A generator for each input: the two managers may ask in another order. A text seeds it by SHA-512, alike in all
    # processes.
    drawn = random.Random(f"{episode} {turn} {env_id}")
    lookup = getattr(getattr(entry["env"], "config", None), "action_lookup", None)  # a reset may set it
    actions = [drawn.choice(list(map(str, lookup.values())) if lookup else EXAMPLES)]
    if lookup:
        actions += [drawn.choice(list(map(str, lookup.values()))) for _ in range(drawn.randrange(3))]
    if drawn.random() < 0.2:
        actions.append("nonsense")
    if (episode + turn + env_id) % 5 == 4:
        actions = []
    text = f"<answer>{' || '.join(actions)}</answer>"
    return {"env_id": env_id, "actions": actions, "llm_response": text, "llm_raw_response": f"<think></think>{text}"}


def _seed_generators() -> None:
    # Any number does: both managers have to start from the same states.
    random.seed(11)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy").random.seed(11)


def _frozen(value: Any) -> Any:
    """A value as it is now, to compare later: types, order of keys, and every byte of an image."""
    if hasattr(value, "tobytes") and not hasattr(value, "item"):
        return type(value).__name__, value.mode, value.size, _digest(value.tobytes())
    if hasattr(value, "tobytes") and getattr(value, "shape", None):
        return "array", str(value.dtype), value.shape, _digest(value.tobytes())
    if isinstance(value, Mapping):
        return "dict", [(_frozen(key), _frozen(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [_frozen(each) for each in value]
    return type(value).__name__, repr(value)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def first_difference(expected: Any, got: Any, path: str = "") -> str:
    """The first difference between two values; "" if they are equal."""
    if expected == got:
        return ""
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        for index, pair in enumerate(zip(expected, got, strict=False)):
            if found := first_difference(*pair, f"{path}/{index}"):
                return found
        expected, got = f"{len(expected)} items", f"{len(got)} items"
    return f"{path}: {str(expected)[:200]} became {str(got)[:200]}"


if __name__ == "__main__":
    sys.exit(main())
