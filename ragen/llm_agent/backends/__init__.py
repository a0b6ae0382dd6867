"""The backends that answer prompts, chosen by ``actor.backend`` and imported only then.

============  ====================================================================  ====================
name          model                                                                 needs
============  ====================================================================  ====================
``scripted``  a policy for each environment; no model
``hf``        a Hugging Face model in this process, on CPU or GPU                   extra ``hf``
``vllm``      a vLLM engine in this process                                         extra ``vllm``
``openai``    any server with OpenAI's chat completions API
``verl``      a verl worker group with ``generate_sequences``                       extra ``verl``
============  ====================================================================  ====================

To add a backend, derive a class from :class:`Backend` (:class:`StreamingBackend` for a server that answers request by
request) and add it to ``BACKENDS``; a class outside this package is given as ``actor.backend: "package.module:Class"``.
"""

from __future__ import annotations

import importlib
from typing import Any

from ragen.errors import ConfigError, install_command
from ragen.extras import EXTRAS, missing
from ragen.llm_agent.backends.base import Backend, Reply, Request, Sampling
from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.llm_agent.config.loading import setting

__all__ = [
    "BACKENDS",
    "Backend",
    "Reply",
    "Request",
    "Sampling",
    "StreamingBackend",
    "create_backend",
    "tokenizer_name",
]

SCRIPTED = "scripted"
BACKENDS = {
    "hf": "ragen.llm_agent.backends.hf:HfBackend",
    "openai": "ragen.llm_agent.backends.openai:OpenAIBackend",
    SCRIPTED: "ragen.llm_agent.backends.scripted:ScriptedBackend",
    "verl": "ragen.llm_agent.backends.verl:VerlBackend",
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
    name = setting(config, "actor.backend", str)
    named = [key for key in ("actor.model", "actor.base_url") if setting(config, key, str, None) is not None]
    if name == SCRIPTED and named:
        raise ConfigError(
            f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} set, and actor.backend is 'scripted', which "
            "asks no model; expected actor.backend=openai for a server's, hf or vllm for one in this process."
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
            "or 'package.module:Class'."
        )
    if name in EXTRAS and (lacking := missing(name)):
        raise ConfigError(
            f"configuration key 'actor.backend' is {name!r}, which needs the package "
            f"{' and '.join(map(repr, lacking))}; install this package's extra {name!r}: {install_command(name)}."
        )
    module_name, _, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"configuration key 'actor.backend' is {name!r}, which cannot be imported: {error}."
        ) from error
    if not isinstance(found, type) or Backend not in found.__mro__:
        raise ConfigError(
            f"configuration key 'actor.backend' is {name!r}, which is not a backend; expected a class that "
            f"derives from ragen.llm_agent.backends.Backend."
        )
    return found


def tokenizer_name(config: Any) -> str | None:
    """The folder or hub name of the tokenizer to use; None for the one that comes with this package.

    That is ``actor.tokenizer``; if it is null, the model's own for backends that take tokens.

    Raises:
        ConfigError: A key is missing or has a value of the wrong type.
    """
    name = setting(config, "actor.tokenizer", str, None)
    backend = backend_class(setting(config, "actor.backend", str))
    if name is None and backend.takes_tokens:
        return model_path(config)
    return name


def model_path(config: Any) -> str:
    """The model to load: ``actor.model``, or ``actor_rollout_ref.model.path`` if that is null.

    Raises:
        ConfigError: Neither is set.
    """
    name = setting(config, "actor.model", str, None)
    return setting(config, "actor_rollout_ref.model.path", str) if name is None else name


def model_key(config: Any) -> str:
    """The configuration key from which :func:`model_path` takes the model."""
    is_named = setting(config, "actor.model", str, None) is not None
    return "actor.model" if is_named else "actor_rollout_ref.model.path"
