"""The backend, tokenizer and model of a configuration; each is imported only when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ragen.config.loading import as_config
from ragen.errors import ConfigError, did_you_mean, install_command, one_line
from ragen.extras import EXTRAS, missing, needs
from ragen.llm_agent.backends.base import Backend
from ragen.utils import object_at

SCRIPTED = "scripted"
BACKENDS = {
    "hf": "ragen.llm_agent.backends.hf:HfBackend",
    "openai": "ragen.llm_agent.backends.openai:OpenAIBackend",
    SCRIPTED: "ragen.llm_agent.backends.scripted:ScriptedBackend",
    "vllm": "ragen.llm_agent.backends.vllm:VllmBackend",
}


def create_backend(config: Any, tokenizer: Any = None) -> Backend:
    """The backend that ``actor.backend`` names.

    Args:
        config: The whole configuration.
        tokenizer: Passed on to the backend.

    Raises:
        ConfigError: The name is unknown, a package is missing, a key has an invalid value, or a model is named although
            the backend uses none.
    """
    name = as_config(config).actor.backend
    named = [key for key in ("actor.model", "actor.base_url") if as_config(config).select(key) is not None]
    if name == SCRIPTED and named:
        raise ConfigError(
            f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} set, and actor.backend is 'scripted', which "
            "asks no model; expected actor.backend=openai for a server's, hf or vllm for one in this process, or "
            "actor.model=null."
        )
    return backend_class(name).from_config(config, tokenizer)


def backend_class(name: str) -> type[Backend]:
    """The class of a backend, imported now; checks that the packages it needs are installed, without importing them.

    Raises:
        ConfigError: The name is unknown, a package is missing, or its module cannot be imported.
    """
    path = BACKENDS.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f"configuration key 'actor.backend' is {name!r}; expected one of {', '.join(sorted(BACKENDS))}, "
            f"or 'package.module:Class'.{did_you_mean(name, BACKENDS)}"
        )
    if name in EXTRAS and (lacking := missing(name)):
        raise ConfigError(
            f"configuration key 'actor.backend' is {name!r}, which needs the package "
            f"{' and '.join(map(repr, lacking))}; install this package's extra {name!r}: {install_command(name)}."
        )
    found = object_at(path, "configuration key 'actor.backend'", "CLASS")
    if not isinstance(found, type) or Backend not in found.__mro__:
        raise ConfigError(
            f"configuration key 'actor.backend' is {name!r}, which is not a backend; expected a class that "
            f"derives from ragen.llm_agent.backends.Backend."
        )
    return found


def create_tokenizer(config: Any, light: bool = False) -> Any:
    """The tokenizer of prompts: ``actor.tokenizer``, or if null, the model's own for backends that take tokens.

    Other backends get the small one that comes with this package.

    Args:
        config: The whole configuration.
        light: Whether the package's own tokenizer may be one that works without transformers, which is slow to import.

    Raises:
        ConfigError: There is no such tokenizer, or it has no chat template.
    """
    name = _tokenizer_name(config)
    if name is None and light:
        from ragen.llm_agent.tokenizer import LightTokenizer

        return LightTokenizer()
    if name is None:
        from ragen.llm_agent.tokenizer import load_tokenizer

        return load_tokenizer()
    with needs("hf", "a Hugging Face tokenizer"):
        from transformers import AutoTokenizer

    from ragen.llm_agent.prompts.chat_template import ChatTemplate

    key = "actor.tokenizer" if as_config(config).actor.tokenizer else model_key(config)
    check_local(key, name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} = {name!r}: {one_line(error)}") from error
    ChatTemplate(tokenizer)  # before a model is loaded, which is slow
    return tokenizer


def check_local(key: str, name: str) -> None:
    """Check that the folder of a model or tokenizer exists; libraries take missing ones for names on the hub.

    Args:
        key: The configuration key of the name.
        name: A folder, or a name on the hub.

    Raises:
        ConfigError: The name is clearly a path, and there is no such folder.
    """
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        hint = " ~ is not expanded here; write the whole path." if name.startswith("~") else ""
        raise ConfigError(f"{key} = {name!r}: no such folder.{hint}")


def _tokenizer_name(config: Any) -> str | None:
    """The folder or hub name of the tokenizer to use; None for the one that comes with this package."""
    name = as_config(config).actor.tokenizer
    backend = backend_class(as_config(config).actor.backend)
    if name is None and backend.takes_tokens:
        return model_path(config)
    return name


def model_path(config: Any) -> str:
    """The model to load: ``actor.model``, or ``actor_rollout_ref.model.path`` if that is null.

    Raises:
        ConfigError: Neither is set.
    """
    whole = as_config(config)
    if (name := whole.actor.model or whole.actor_rollout_ref.model.path) is None:
        raise ConfigError("actor_rollout_ref.model.path is missing: expected a folder or hub name.")
    return name


def model_key(config: Any) -> str:
    """The configuration key from which :func:`model_path` takes the model."""
    is_named = as_config(config).actor.model is not None
    return "actor.model" if is_named else "actor_rollout_ref.model.path"
