"""The backends that answer prompts, chosen by ``actor.backend`` and imported only then.

============  ====================================================================  ====================
name          model                                                                 needs
============  ====================================================================  ====================
``scripted``  a policy for each environment; no model
``hf``        a Hugging Face model in this process, on CPU or GPU                   extra ``hf``
``vllm``      a vLLM engine in this process                                         extra ``vllm``
``openai``    any server with OpenAI's chat completions API
============  ====================================================================  ====================

To add a backend, derive a class from :class:`Backend` (:class:`StreamingBackend` for a server that answers request by
request) and add it to :data:`~ragen.llm_agent.backends.factory.BACKENDS`; a class outside this package is given as
``actor.backend: "package.module:Class"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.llm_agent.backends.base import Backend, Reply, Request, Sampling, StreamingBackend
    from ragen.llm_agent.backends.factory import BACKENDS, create_backend, create_tokenizer
    from ragen.llm_agent.backends.hf import HfBackend
    from ragen.llm_agent.backends.openai import OpenAIBackend
    from ragen.llm_agent.backends.reply_journal import ReplyJournal
    from ragen.llm_agent.backends.scripted import ScriptedBackend

__all__ = [
    "BACKENDS",
    "Backend",
    "HfBackend",
    "OpenAIBackend",
    "Reply",
    "ReplyJournal",
    "Request",
    "Sampling",
    "ScriptedBackend",
    "StreamingBackend",
    "create_backend",
    "create_tokenizer",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        **dict.fromkeys(("Backend", "Reply", "Request", "Sampling"), "base"),
        **dict.fromkeys(("BACKENDS", "create_backend", "create_tokenizer"), "factory"),
        "HfBackend": "hf",
        "OpenAIBackend": "openai",
        "ReplyJournal": "reply_journal",
        "ScriptedBackend": "scripted",
        "StreamingBackend": "base",
    },
)
