"""RAGEN-compatible environments, and rollouts that step them in worker processes.

There are three layers, and imports only point down: ``ragen.llm_agent`` (prompts, models, ``DataProto``) uses
``envlanes`` (processes, time-outs, failures), which uses ``ragen.env`` (environments). Importing ``ragen`` itself
imports none of them.
"""

__version__ = "0.2.0"
