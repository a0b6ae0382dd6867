"""RAGEN's environment manager on the engine, for a checkout of RAGEN as for this repository's own package.

In a checkout, ``ragen/llm_agent/es_manager.py`` becomes one line, and ``git checkout`` undoes it::

    from envlanes.ragen import EnvStateManager, EnvStatus, _worker_init, _worker_step_single_env

``python -m envlanes.ragen.prove CHECKOUT`` compares it with the manager that stood there. A manager with methods of its
own stays, and its environments move: ``REGISTERED_ENVS = hosted(REGISTERED_ENVS)``, see :func:`hosted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from envlanes.ragen.checkout import EnvStateManager, _worker_init, _worker_step_single_env
    from envlanes.ragen.hosting import hosted
    from envlanes.ragen.inputs import EnvStatus

__all__ = ["EnvStateManager", "EnvStatus", "_worker_init", "_worker_step_single_env", "hosted"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "EnvStateManager": "checkout",
        "EnvStatus": "inputs",
        "_worker_init": "checkout",
        "_worker_step_single_env": "checkout",
        "hosted": "hosting",
    },
)
