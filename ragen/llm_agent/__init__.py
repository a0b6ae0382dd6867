"""From environments to training data: the manager of environments, prompts, models and rollouts."""
