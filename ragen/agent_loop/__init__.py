"""Training with verl's own trainer: one trajectory is one ``run()`` of an agent loop, all of them at once.

Reading order: ``episode`` (what has happened in one trajectory), ``script`` (what the model is told, and how its
replies are read), ``trail`` (the trajectory in tokens), ``service`` (the environments, in lanes, with a
queue each: ``queues``), ``service_actor`` (the service in a Ray actor), ``remote`` (who asks it; ``lookup`` finds it,
``heartbeat`` sees whether it lives), ``service_metrics`` (what a trainer logs of it), ``session`` (one trajectory's
environment), ``loop`` (verl's side: the class that ``config/agent_loop/agent_loops.yaml`` names), ``dataset`` (the rows
that the trainer reads) and ``training`` (how it is started).

Only ``loop`` imports verl. It registers nothing when it is imported: verl's ``@register`` would replace the entry that
the YAML file made, and with it whatever arguments stand there.
"""
