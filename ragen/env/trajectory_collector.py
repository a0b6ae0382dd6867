"""Re-exports :mod:`ragen.turns.collector` publicly; nothing in ``ragen.env`` imports this module."""

from ragen.turns.collector import Collected, TrajectoryCollector, filter_group_data, to_list_of_dict

__all__ = ["Collected", "TrajectoryCollector", "filter_group_data", "to_list_of_dict"]
