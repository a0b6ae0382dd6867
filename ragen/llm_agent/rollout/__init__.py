"""Playing rollouts: the loops, who answers in them, and what is kept of each."""
