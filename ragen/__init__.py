"""RAGEN-compatible environments, and rollouts that step them in worker processes.

Three floors, imports only point down: ``ragen.llm_agent`` (prompts, models, ``DataProto``) uses ``ragen.parallel``
(processes, time, failure), which uses ``ragen.env`` (games). Importing ``ragen`` itself imports none of them.
"""

__version__ = "0.2.0"
