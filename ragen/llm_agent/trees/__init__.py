"""Trees of rollouts as values: who shares which turns with whom, when to branch, what is learned of it.

::

    env 0     turn 0 -- turn 1 -- turn 2 -- turn 3         a leaf is a whole trajectory: 0, 8, 9 and 10
                          |         |
    env 8                 |         +---- turn 3           branched from env 0 after three turns
    env 9                 +---- turn 2 -- turn 3
    env 10                          +---- turn 3           branched from env 9

:mod:`~.lineage` reads this from rollout caches, and computes advantages and counts; :mod:`~.policy` decides where to
branch. Neither of them plays; :mod:`ragen.llm_agent.rollout.trees` does.
"""
