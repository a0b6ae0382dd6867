"""Checks of configurations, seeds and actions, with uniform messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from math import inf, isfinite
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ragen.errors import ConfigError


def require(ok: bool, config: Any, key: str, expected: str) -> None:
    """Refuse a configuration value.

    Args:
        ok: Whether the value is valid.
        config: The configuration.
        key: The key in ``env_config``.
        expected: A description of valid values.

    Raises:
        ConfigError: ``ok`` is false.
    """
    if not ok:
        name = type(config).__name__.removesuffix("EnvConfig")
        raise ConfigError(f"{name}: env_config key {key}={getattr(config, key)!r}, expected {expected}.")


class Rule(NamedTuple):
    """The valid values of a configuration key.

    Attributes:
        fits: Whether a value is valid.
        expected: A description of valid values.
    """

    fits: Callable[[Any], bool]
    expected: str


def integer(low: int | None = None, high: int | None = None) -> Rule:
    """An integer (``True`` and ``1.0`` are none) between two bounds, both included."""
    return _between("an integer", lambda value: type(value) is int, low, high)


def number(low: float | None = None, high: float | None = None) -> Rule:
    """A finite number between two bounds, both included."""
    return _between("a number", lambda value: type(value) in (int, float) and isfinite(value), low, high)


def _between(kind: str, fits: Callable[[Any], bool], low: float | None, high: float | None) -> Rule:
    expected = kind + (f" from {low}" if low is not None else "") + (f" to {high}" if high is not None else "")
    least, most = -inf if low is None else low, inf if high is None else high
    return Rule(lambda value: fits(value) and least <= value <= most, expected)


def one_of(*known: Any) -> Rule:
    """One of these values."""
    return Rule(lambda value: value in known and type(value) in map(type, known), " or ".join(map(repr, known)))


def some_of(known: Iterable[Any]) -> Rule:
    """A list of some of these values, not empty."""
    one = one_of(*known)
    fits = lambda values: isinstance(values, list | tuple) and bool(values) and all(map(one.fits, values))  # noqa: E731
    return Rule(fits, f"a list of some of {', '.join(map(repr, known))}")


def or_null(rule: Rule) -> Rule:
    """None, or what a rule allows."""
    return Rule(lambda value: value is None or rule.fits(value), f"null or {rule.expected}")


def names_for(numbers: Collection[int]) -> Rule:
    """A mapping from these numbers to texts, each of one line and not empty."""
    fits = lambda value: (  # noqa: E731
        isinstance(value, Mapping)
        and {*value} == {*numbers}
        and all(isinstance(text, str) and text and "\n" not in text for text in value.values())
    )
    return Rule(fits, f"a text (not empty, one line) for each of {', '.join(map(str, numbers))}, and no other keys")


def null(why: str) -> Rule:
    """None alone, for a reason such as ``"; use limit_goals"``."""
    return Rule(lambda value: value is None, f"null{why}")


def address(*schemes: str) -> Rule:
    """An address that begins with one of these."""
    fits = lambda value: isinstance(value, str) and value.startswith(schemes)  # noqa: E731
    return Rule(fits, f"an address that begins with {' or '.join(schemes)}")


TRUTH = one_of(True, False)
TEXT = Rule(lambda value: isinstance(value, str) and bool(value), "a text that is not empty")
ALL_OR_SOME = Rule(lambda value: value == -1 or integer(1).fits(value), "an integer from 1, or -1 for all")
FOLDER = Rule(lambda value: isinstance(value, str) and os.path.isdir(value), "an existing folder")
FILE = Rule(lambda value: isinstance(value, str) and os.path.isfile(value), "an existing file")


def check(config: Any, **rules: Rule) -> None:
    """Check a configuration.

    Args:
        config: The configuration, a dataclass.
        rules: Rules by key, of the keys for which :func:`declared_rules` has none or a wider one.

    Raises:
        ConfigError: A value is invalid.
    """
    for key, rule in {**declared_rules(config.__class__), **rules}.items():
        require(rule.fits(getattr(config, key)), config, key, rule.expected)


@cache
def declared_rules(config_class: Any) -> dict[str, Rule]:
    """The rules that follow from the declared types of a dataclass.

    A truth value for ``bool``, an integer from 1 for ``int``, a number for ``float``, a text that is not empty for
    ``str``, the values of a ``Literal``, and null beside each of them; ``render_mode`` of type ``str`` is ``"text"``.
    """
    simple = {bool: TRUTH, int: integer(1), float: number(), str: TEXT}
    rules = {}
    for key, hint in get_type_hints(config_class).items():
        kinds = alternatives(hint)
        choices = get_args(kinds[-1]) if get_origin(kinds[-1]) is Literal else ()
        rule = one_of(*choices) if choices else simple.get(kinds[-1])
        if key == "render_mode" and hint is str:
            rule = one_of("text")
        if rule is not None:
            rules[key] = or_null(rule) if kinds[0] is type(None) else rule
    return rules


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The single types of a union, None first so that ``null`` is not taken for a text."""
    if get_origin(hint) not in (Union, UnionType):
        return (hint,)
    return tuple(sorted(get_args(hint), key=lambda kind: kind is not type(None)))
