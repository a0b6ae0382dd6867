"""What rollouts come to: results by tag, comparisons of runs, and the statistics under both."""

from ragen.llm_agent._moved import moved_names

__getattr__ = moved_names(
    "ragen.llm_agent.evaluation",
    "ragen.llm_agent.evaluation.results",
    (
        "ALL",
        "TagResult",
        "evaluate",
        "groups_of",
        "print_results",
        "print_whole",
        "result_table",
        "states_of",
        "usage_line",
        "with_pass_at_k",
        "write_results",
    ),
)
