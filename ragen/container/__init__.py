"""Containers of text environments: many environments, one action each a call.

    container     lists of actions in, lists of observations, rewards, dones and infos out
    game          what one call does to one environment

Built on the public :class:`~ragen.parallel.engine.EnvEngine`: what holds for it (equal for any number of workers,
killed or not) holds here. Imports neither torch nor verl. ``ragen.env`` gives these names too. Managers, which write
prompts around a container and read replies, are in :mod:`ragen.llm_agent.collecting`.
"""
