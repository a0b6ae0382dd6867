"""An environment played by a person, or by lines from a pipe."""

from __future__ import annotations

import json
import secrets
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TextIO

from ragen.env.checks import SEED_LIMIT
from ragen.env.fields import alternatives, described, field_types
from ragen.env.keys import ARROWS, KeyReader
from ragen.env.registry import resolve_env
from ragen.errors import ConfigError, InputError, did_you_mean

_QUIT = "quit"
_LONGEST_SHOWN = 60  # characters of an info value
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def build_env(env_type: str, settings: Iterable[str] = ()) -> Any:
    """An environment with some keys of its configuration set.

    Args:
        env_type: A registered name, an entry point's name, or a ``"package.module:Class"`` path.
        settings: ``"key=value"`` each, the value as its key's type is written.

    Raises:
        UnknownEnvError: There is no such type.
        ConfigError: A key is unknown, or a value does not fit.
    """
    env_class, config_class = resolve_env(env_type)
    values = read_settings(env_type, config_class, settings)
    return env_class(config_class(**values) if config_class else None)


def read_settings(env_type: str, config_class: type | None, settings: Iterable[str]) -> dict[str, Any]:
    """Keys of a configuration as they are written on a command line.

    Args:
        env_type: Whose configuration it is, for messages.
        config_class: The configuration's class; None takes no keys.
        settings: ``"key=value"`` each, the value as its key's type is written.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    known = field_types(config_class)
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"{env_type}: {setting!r} is not of the form key=value.")
        if key not in known:
            meant = did_you_mean(key, known) or f" There {'are' if known else 'is'} {', '.join(known) or 'none'}."
            raise ConfigError(f"{env_type}: unknown key {key!r}.{meant}")
        values[key] = _value(env_type, key, text, known[key])
    return values


def _value(env_type: str, key: str, text: str, hint: Any) -> Any:
    for kind in alternatives(hint):
        try:
            return _read(text, kind)
        except (ValueError, TypeError):
            continue
    raise ConfigError(f"{env_type}: {key}={text!r}, expected {described(hint)}.")


def _read(text: str, kind: Any) -> Any:
    readers: dict[Any, Callable[[str], Any]] = {
        bool: _read_bool,
        type(None): _read_none,
        int: int,
        float: float,
        str: str,
    }
    if kind in readers:
        return readers[kind](text)
    if kind is Any:
        return _read_any(text)
    origin = typing.get_origin(kind) or kind
    if origin is Literal:
        return {str(option): option for option in typing.get_args(kind)}.get(text, text)  # the config refuses others
    value = _read_json(text)
    if origin is tuple:
        return tuple(value)
    if origin is dict and typing.get_args(kind)[:1] == (int,):
        return {int(key): item for key, item in value.items()}
    return value


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(f"[{text}]")  # 8,8 for [8, 8]


def _read_any(text: str) -> Any:
    try:
        return _read_json(text)
    except ValueError:
        return text


def _read_bool(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _read_none(text: str) -> None:
    if text.lower() not in ("null", "none"):
        raise ValueError(text)


def play(
    env: Any,
    env_type: str,
    lines: TextIO,
    out: TextIO,
    seed: int | None = None,
    mode: str = "train",
    image: Path | None = None,
) -> None:
    """Play one episode: show the state, read an action, play it, until it is over, ``quit``, or the lines end.

    Args:
        env: The environment; it is reset here.
        env_type: Its name, for what is shown.
        lines: Where the actions come from, one a line.
        out: Where everything is shown.
        seed: The level; None draws one.
        mode: The mode given to ``reset``.
        image: A picture of the state is kept here.

    Raises:
        InputError: A picture is wanted of an environment that has none, or the seed is out of range.
        ConfigError: The picture cannot be written.
    """
    seed = secrets.randbelow(SEED_LIMIT) if seed is None else seed
    env.reset(seed, mode)
    _keep_picture(env, env_type, image)
    lookup = getattr(env.config, "action_lookup", None)
    keys = " Arrow keys move." if isinstance(lines, KeyReader) and _has_arrows(lookup) else ""
    print(f"{env_type}, seed {seed}. One action per line; {_QUIT!r} or the end of input ends.{keys}", file=out)
    if image is not None:
        print(f"Picture: {image}", file=out)
    print(f"Actions: {_legal(env, lookup)}\n\n{_state(env)}", file=out)
    echo = not lines.isatty()
    played, total, done, info = 0, 0.0, False, {}
    while not done:
        text = _ask(lines, out, echo)
        if text is None:
            break
        action = _action(text, lookup)
        if action is None:
            print(f"{text!r} is not one of {_legal(env, lookup)}.", file=out)
            continue
        _, reward, done, info = env.step(action)
        played, total = played + 1, total + reward
        _keep_picture(env, env_type, image)
        print(f"\nreward {reward}; {_described_info(info)}\n\n{_state(env)}", file=out)
    actions = "1 action" if played == 1 else f"{played} actions"
    print(f"\n{_outcome(done, info)} after {actions}, total reward {total:g}.", file=out)


def _legal(env: Any, lookup: dict[int, str] | None) -> str:
    if lookup:
        return ", ".join(f"{name} ({key})" for key, name in lookup.items())
    return getattr(env, "action_hint", "any text")


def _has_arrows(lookup: dict[int, str] | None) -> bool:
    return {name.lower() for name in ARROWS.values()} <= {name.lower() for name in (lookup or {}).values()}


def _ask(lines: TextIO, out: TextIO, echo: bool) -> str | None:
    print("> ", end="", file=out, flush=True)
    line = lines.readline()
    text = line.rstrip("\r\n")
    if echo or not line:
        print(text, file=out)
    return None if not line or text.strip().lower() == _QUIT else text


def _action(text: str, lookup: dict[int, str] | None) -> Any:
    if not lookup:
        return text
    wanted = text.strip().lower()
    for key, name in lookup.items():
        if wanted in (name.lower(), str(key)):
            return key
    return None


def _described_info(info: dict[str, Any]) -> str:
    shown = (f"{key}={value}" for key, value in info.items())
    return ", ".join(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..." for text in shown)


def _outcome(done: bool, info: dict[str, Any]) -> str:
    if not done:
        return "Left"
    return "Solved" if info.get("success") else "Finished, not solved,"


def _state(env: Any) -> str:
    seen = env.render()
    return seen if isinstance(seen, str) else env.render(mode="text")


def _keep_picture(env: Any, env_type: str, image: Path | None) -> None:
    if image is None:
        return
    seen = env.render()
    if isinstance(seen, str):
        try:
            seen = env.render(mode="rgb_array")
        except (InputError, ConfigError, ValueError, TypeError) as error:
            raise InputError(f"{env_type} has no image observation for --image.") from error
    _save(seen[-1] if isinstance(seen, list) else seen, env_type, image)


def _save(picture: Any, env_type: str, image: Path) -> None:
    from PIL import Image

    try:
        Image.fromarray(picture).save(image)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{env_type}: the picture cannot be written to {str(image)!r}: {error}.") from error
