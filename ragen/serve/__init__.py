"""Environments over OpenEnv's wire: WebSocket and HTTP, sessions in worker processes, episodes that outlive a cut.

Reading order: ``journal`` (an open episode on disk), ``sessions`` (what a client's session is, on the environment
service that agent loops use too), ``app`` (the wire: messages, errors, authentication) and ``command``
(``ragen serve``). Only ``app`` and ``command`` import starlette and uvicorn.
"""
