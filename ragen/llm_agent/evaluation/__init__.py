"""What rollouts come to: results by tag, comparisons of runs, and the statistics under both."""
