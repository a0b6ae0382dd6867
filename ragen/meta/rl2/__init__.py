"""RL^2 (Duan et al. 2016): a recurrent agent, trained by PPO over whole rollouts, learns how to learn a task."""
