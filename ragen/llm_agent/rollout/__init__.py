"""Playing rollouts: players, schedules, actors, and the files of a rollout."""
