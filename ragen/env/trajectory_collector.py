"""Re-exports :mod:`ragen.llm_agent.collecting.collector` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.llm_agent.collecting.collector import Collected, TrajectoryCollector, filter_group_data, to_list_of_dict

__all__ = ["Collected", "TrajectoryCollector", "filter_group_data", "to_list_of_dict"]
