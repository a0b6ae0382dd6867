"""A server for OpenEnv's protocol: WebSocket and HTTP, sessions in worker processes, episodes that can be resumed.

Reading order: ``sessions`` (clients' sessions, on the environment service that agent loops use too), ``app`` (messages,
errors, authentication) and ``command`` (``ragen serve``). Only ``app`` and ``command`` import starlette and uvicorn.
"""
