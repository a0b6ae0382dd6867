"""What tests share: environments, faulty and toy ones, models, stand-ins, and readers of what is compared with.

``tests`` is on the path (``pythonpath`` in ``pyproject.toml``), hence in worker processes too, and an environment's
type reads ``support.faulty_envs:Walk``; not ``tests.support``, since installed packages bring a ``tests`` of their own.
"""
