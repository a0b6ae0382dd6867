"""Text environments in groups, stepped by one action each, and rollouts with one row per turn.

    collector     the loop over turns, and the batch of all rows
      managers    prompts with histories (prompts), texts back to actions
        container lists of actions to lists of observations, rewards, dones and infos
          game    the effect of one action on one environment
    factory       managers for training and validation from a configuration

Environments live in workers of :class:`~envlanes.engine.Engine`: results are equal for any number of workers, killed
or not. ``ragen.env`` exports the names.
"""
