"""Training with verl's own trainer: each trajectory is one ``run()`` of an agent loop, and all run concurrently.

Reading order: ``episode`` (the state of one trajectory), ``script`` (prompts, and parsing of replies), ``tokens`` (the
trajectory in tokens), ``service`` (the environments), ``ray_service`` (the service in a Ray actor), ``session`` (one
trajectory's environment), ``replies`` (their journal, for a job that is killed), ``loop`` (verl's side: the class that
``config/agent_loop/agent_loops.yaml`` names), ``dataset`` (the rows that the trainer reads) and ``training`` (starting
the trainer).

Only ``loop`` imports verl. It registers nothing on import: verl's ``@register`` would replace the entry from the YAML
file together with its arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envlanes.lazy import attach

if TYPE_CHECKING:
    from ragen.agent_loop.training import allow_verl_keys, train

__all__ = [
    "allow_verl_keys",
    "train",
]

__getattr__, __dir__ = attach(
    __name__,
    dict.fromkeys(("allow_verl_keys", "train"), "training"),
)
