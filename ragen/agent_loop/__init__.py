"""Training with verl's own trainer: each trajectory is one ``run()`` of an agent loop, and all run concurrently.

Reading order: ``episode`` (the state of one trajectory), ``script`` (prompts, and parsing of replies), ``tokens`` (the
trajectory in tokens), ``service`` (the environments, in lanes with a queue each: ``queues``), ``ray_service`` (the
service in a Ray actor, and its client), ``service_metrics`` (its metrics for a trainer), ``session`` (one trajectory's
environment), ``loop`` (verl's side: the class that ``config/agent_loop/agent_loops.yaml`` names), ``dataset`` (the rows
that the trainer reads) and ``training`` (starting the trainer).

Only ``loop`` imports verl. It registers nothing on import: verl's ``@register`` would replace the entry from the YAML
file together with its arguments.
"""
