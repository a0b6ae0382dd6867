"""Rollouts in rows by turn, under the name by which they were first asked for; see :mod:`ragen.llm_agent.collecting`.

Nothing of ``ragen.env`` imports this module: what it gives knows tokenizers and batches, floors above the games.
"""

from ragen.llm_agent.collecting.collector import Collected, TrajectoryCollector, filter_group_data, to_list_of_dict

__all__ = ["Collected", "TrajectoryCollector", "filter_group_data", "to_list_of_dict"]
