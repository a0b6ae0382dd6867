"""A two-armed bandit; only the arms' names hint at their payouts."""
