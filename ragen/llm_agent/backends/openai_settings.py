"""The settings of an OpenAI-compatible server: the keys of ``actor.openai``; see :mod:`ragen.config.schema`.

Keys come only from the environment. A query of ``actor.base_url`` is sent with every request. Redirects are not
followed. vLLM's server sends its tokens if ``actor.openai.request`` has ``{return_token_ids: true, logprobs: true}``;
training batches then consist of them, so ``actor.tokenizer`` must be the model's own.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ragen.config.loading import as_config, refused
from ragen.errors import ConfigError, did_you_mean
from ragen.llm_agent.backends.base import SAMPLING_BOUNDS, TOKENS, Sampling
from ragen.output import LOOKS_SECRET, SECRET_NAME, printable, shown_address

OPENAI_URL = "https://api.openai.com/v1"
_KEYS = "actor.openai"
_SHORTEST_SECRET = 8  # characters of a query's value that may be a secret, such as ``?api-key=...``
_SHORTEST_KEY = 4  # characters; a shorter one, such as ``x``, is a placeholder for local servers
_LISTED = 5  # models that a message names
_LONGEST_NAME = 100  # characters of a model's name in a message
_SET_HERE = ("messages", "model", "stream", "n")
_USER_WITHIN = re.compile(r"://[^\s/@]*@")
_PRINTABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, repr=False)
class Access:
    """Credentials of a server, which are never shown.

    Attributes:
        key: The server's key; None for servers that need none.
        user: ``user:password`` for a server, or a proxy before it, that needs these instead; otherwise None.
        query: The query of the address, which is sent with every request and may hold a key.
    """

    key: str | None = None
    user: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request, except the key."""
        return {} if self.user is None else {"Authorization": f"Basic {self._basic}"}

    @property
    def _basic(self) -> str:
        return b64encode((self.user or "").encode()).decode("ascii")

    def redacted(self, text: str) -> str:
        """A text without these credentials, quoted or not, and without anything that looks like a key or a password."""
        secrets = [
            self.key if self.key and len(self.key) >= _SHORTEST_KEY else "",
            *(value for value in self.query.values() if len(value) >= _SHORTEST_SECRET),
        ]
        if self.user is not None:
            name, _, password = self.user.partition(":")
            secrets += [self._basic, self.user, password or name]
        quoted = [repr(secret)[1:-1] for secret in secrets]
        for secret in sorted({*secrets, *quoted} - {""}, key=len, reverse=True):
            text = text.replace(secret, "***")
        return LOOKS_SECRET.sub("***", _USER_WITHIN.sub("://***@", text))


@dataclass(frozen=True)
class ApiSettings:
    """The settings of a server; see the module for the configuration keys.

    Attributes:
        model: The model's name on the server; None for its only one.
        base_url: The server's address, with its ``/v1``.
        api_key_env: The environment variable that holds the key.
        max_concurrency: Maximum number of concurrent requests.
        timeout: Seconds for one try of a request.
        max_retries: Number of retries of a request whose failure may be temporary.
        backoff: Seconds before the first retry; the client's waits grow from there.
        grace: Seconds to wait for replies under way when a run is stopped.
        check_model: Whether a model that the server does not list is refused.
        price: Dollars per million tokens, of ``prompt`` and ``completion``.
        request: Fields of the request's body to add or replace; None leaves one out.
    """

    model: str | None = None
    base_url: str = OPENAI_URL
    api_key_env: str | None = "OPENAI_API_KEY"
    max_concurrency: int = 64
    timeout: float = 120.0
    max_retries: int = 5
    backoff: float = 0.5
    grace: float = 10.0
    check_model: bool = True
    price: Mapping[str, float] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)

    def body(self, sampling: Sampling) -> dict[str, Any]:
        """The fields of a request's body, except the model and the chat."""
        fields: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
        }
        if not sampling.greedy and sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if not sampling.greedy and sampling.top_k > 0:
            fields["top_k"] = sampling.top_k  # not OpenAI's, but most compatible servers have it
        return {name: value for name, value in (fields | dict(self.request)).items() if value is not None}

    def cost(self, counts: Mapping[str, float]) -> dict[str, float]:
        """``{"cost": dollars}`` of these token counts; empty without prices or without counts."""
        if not self.price or not any(name in counts for name in TOKENS):
            return {}
        return {"cost": sum(price * counts.get(f"{kind}_tokens", 0) for kind, price in self.price.items()) / 1e6}

    def with_model(self, models: Sequence[str]) -> ApiSettings:
        """The settings with a model: their own, or the server's only one.

        Args:
            models: The models that the server lists.

        Raises:
            ConfigError: No model is configured, and the server does not have exactly one.
        """
        if self.model is not None:
            return self
        if len(models) == 1:
            return replace(self, model=models[0])
        raise ConfigError(
            f"actor.model is missing: expected the name of a model of the server at "
            f"{self.base_url}" + (f", which has: {_listed(models)}." if models else ".")
        )

    def check_listed(self, models: Sequence[str]) -> None:
        """Check that the server lists the model.

        Args:
            models: The models that it lists.

        Raises:
            ConfigError: It does not list the model, and ``check_model`` is true.
        """
        names = set(models)
        if not names or not self.check_model or names & {self.model, f"{self.model}:latest"}:  # as Ollama writes it
            return
        meant = did_you_mean(str(self.model), names, lambda near: printable(near, _LONGEST_NAME))
        raise ConfigError(
            f"configuration key 'actor.model' is {self.model!r}, which the server at {self.base_url} does not list."
            f"{meant} It has: {_listed(models)}. 'actor.openai.check_model=false' skips this check."
        )


def _listed(models: Sequence[str]) -> str:
    named = ", ".join(printable(model, _LONGEST_NAME) for model in models[:_LISTED])
    return named + (", .." if len(models) > _LISTED else "")


def read_settings(config: Any) -> tuple[ApiSettings, Access]:
    """The settings and the credentials, which are kept separate.

    Raises:
        ConfigError: A configuration key has an invalid value, or the server's key is missing or invalid.
    """
    url, user, query = read_address(config)
    actor = as_config(config).actor
    keys = dict(actor.openai)
    price = {kind: amount for kind, amount in keys.pop("price") if amount is not None}
    settings = ApiSettings(
        model=actor.model, base_url=url, **{**keys, "request": _request(keys["request"]), "price": price}
    )
    return settings, Access(read_key(settings, needed=user is None and not query), user, query)


def _request(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``actor.openai.request``; refuses those that this backend sets itself."""
    for name, value in fields.items():
        where = f"{_KEYS}.request.{name}"
        if SECRET_NAME.search(str(name)):
            raise ConfigError(
                f"configuration key {where!r} looks like a key, and what is asked is written to files; set the "
                f"environment variable that '{_KEYS}.api_key_env' names instead."
            )
        if name in _SET_HERE and value not in (None, {"n": 1, "stream": False}.get(name)):
            raise ConfigError(
                f"configuration key {where!r} cannot be set: each request asks for one whole reply of 'actor.model' to "
                "the messages of its trajectory."
            )
    for name, (low, high) in SAMPLING_BOUNDS.items():
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= (high or inf):
            raise refused(
                f"{_KEYS}.request.{name}", value, f"a number of at least {low}" + f" and at most {high}" * bool(high)
            )
    return {name: value for name, value in fields.items() if name not in _SET_HERE}


def read_key(settings: ApiSettings, needed: bool) -> str | None:
    """The server's key from the environment; None for a server that needs none.

    Args:
        settings: The server's address and the variable of its key.
        needed: Whether OpenAI's own server needs a key.

    Raises:
        ConfigError: It is missing, or has characters that are not allowed in a header.
    """
    name = settings.api_key_env or ""
    key = os.environ.get(name, "").strip()
    if key and not _PRINTABLE.fullmatch(key):
        raise ConfigError(
            f"environment variable {name!r} does not contain a key: there is a line break, a space or a "
            f"character that is not ASCII in it."
        )
    if not key and needed and settings.base_url == OPENAI_URL:
        raise ConfigError(
            f"the server at {settings.base_url} needs a key, and the environment variable {name!r} is not set; set it, "
            "or name another one in 'actor.openai.api_key_env'."
        )
    return key or None


def read_address(config: Any) -> tuple[str, str | None, dict[str, str]]:
    """``actor.base_url`` without user, password and query; its ``user:password`` or None; and its query.

    Raises:
        ConfigError: It is not an address.
    """
    url = as_config(config).actor.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
    try:
        parts = urlsplit(url)
        works = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port, an unmatched bracket
        works = False
    if not works or not url.isprintable() or " " in url:
        raise ConfigError(
            f"actor.base_url = {shown_address(url)!r}: expected an address such as http://localhost:8000/v1."
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    user, at, host = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=host, query="", fragment="").geturl()
    if not at:
        return bare, None, query
    name, _, password = user.partition(":")
    return bare, f"{unquote(name)}:{unquote(password)}", query
