"""The command ``ragen serve``: environments over OpenEnv's WebSocket and HTTP."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from pathlib import Path
from typing import Any

from ragen.commands import STOPPED, CommandParser, command, positive
from ragen.errors import ConfigError
from ragen.extras import needs

PROG = "ragen serve"
LOCAL = ("localhost", "127.0.0.1", "::1")
GRACE_S = 5  # seconds for pending calls at the end, and again for closing
SILENCE_S = 10  # seconds that a connection may spend on the head of a request
SHORTEST_TOKEN = 8
MAX_ACTIONS = 100  # of an episode, with --env
SECTIONS = ("es_manager", "custom_envs", "agent_loop", "seed")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = CommandParser(
        prog=prog,
        description="Serve environments over OpenEnv's WebSocket and HTTP. Sessions are played in worker processes; "
        "one under /s/TOKEN survives a lost connection and a restart of the server.",
        examples=(
            f"{prog} --env frozen_lake --port 8000",
            f"{prog} --config-name _2_sokoban es_manager.max_workers=4",
        ),
    )
    what = top.add_argument_group("what is served")
    what.add_argument(
        "--env",
        action="append",
        metavar="TYPE",
        help="a type of environment, or module:Class (clients see Class); repeatable",
    )
    what.add_argument("-cn", "--config-name", help="a configuration: all tags of its custom_envs, instead of --env")
    what.add_argument("-cp", "--config-path", metavar="FOLDER", help="folder of the configuration")
    what.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="overrides of the configuration")
    where = top.add_argument_group("where, and to whom")
    where.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    where.add_argument("--port", type=int, default=8000, help="0 for any that is free (default: %(default)s)")
    where.add_argument(
        "--auth-token-file", type=Path, metavar="FILE", help="a file with the token that clients must send"
    )
    limits = top.add_argument_group("sessions")
    limits.add_argument(
        "--max-sessions", type=positive, default=1024, help="concurrent sessions (default: %(default)s)"
    )
    limits.add_argument(
        "--idle-timeout",
        type=positive,
        default=3600,
        metavar="SECONDS",
        help="close a session without calls after this long (default: %(default)s)",
    )
    limits.add_argument(
        "--journal-dir",
        type=Path,
        default=Path("outputs/journals"),
        metavar="FOLDER",
        help="folder for journals of open episodes, which the next server continues (default: %(default)s)",
    )
    limits.add_argument(
        "--no-journal", dest="journal_dir", action="store_const", const=None, help="keep open episodes in memory alone"
    )
    return top


@command(parser, PROG)
def main(arguments: argparse.Namespace, prog: str) -> int:
    """Serve until Ctrl-C or SIGTERM; the exit code."""
    token = read_token(arguments.auth_token_file, arguments.host)
    with needs("serve", prog):
        import uvicorn
        import websockets  # noqa: F401  # uvicorn needs it for WebSocket, and would only notice at the first connection
        from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from ragen.serve.app import MAX_FRAME, create_app
    from ragen.serve.sessions import Sessions

    sessions = Sessions(settings_of(arguments))
    app = create_app(sessions, token, (*LOCAL, arguments.host))
    listening = _listening(arguments.host, arguments.port)
    config = uvicorn.Config(
        app,
        http=_impatient(AutoHTTPProtocol),
        ws_max_size=MAX_FRAME,
        ws_per_message_deflate=False,  # messages are short; it costs a quarter of a turn's time, and memory per session
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
    )
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"serving {', '.join(sessions.settings.tags)} at http://{host}:{listening.getsockname()[1]}", flush=True)
    try:
        _in_time(uvicorn.Server)(config).run(sockets=[listening])
    except KeyboardInterrupt:
        return STOPPED
    return 0


def _impatient(protocol: Any) -> Any:
    """Uvicorn's protocol, closing connections that wait for the rest of a request, which uvicorn keeps forever."""

    class Impatient(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(SILENCE_S, self._close_if_silent, None)

        def _close_if_silent(self, before: Any) -> None:
            if self.transport.is_closing() or self.transport.get_protocol() is not self:  # it is a WebSocket now
                return
            cycle = self.cycle
            if cycle is before and (cycle is None or cycle.response_complete or cycle.more_body):
                self.transport.close()
            else:
                self.loop.call_later(SILENCE_S, self._close_if_silent, cycle)

    return Impatient


def _in_time(server: Any) -> Any:
    """Uvicorn's server, ending in time: a thread in an environment that hangs would keep the process for minutes."""

    class InTime(server):  # type: ignore[misc]
        def handle_exit(self, sig: int, frame: Any) -> None:
            # Answered requests are in the journals, and worker processes end with this one.
            last = threading.Timer(2 * GRACE_S, os._exit, [128 + sig])
            last.daemon = True
            last.start()
            super().handle_exit(sig, frame)

    return InTime


def read_token(file: Path | None, host: str) -> str | None:
    """The token that clients must send; None if the server requires none.

    Args:
        file: The file with the token; surrounding whitespace is ignored.
        host: Address that the server will listen on.

    Raises:
        ConfigError: The file or its token is invalid, or there is none although other machines could connect.
    """
    if file is None:
        if host not in LOCAL:
            raise ConfigError(
                f"--host {host} can be reached from other machines, and would let anyone play; give it "
                "--auth-token-file FILE, or listen on 127.0.0.1."
            )
        return None
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--auth-token-file {file} cannot be read: {error}.") from error
    if not token.isascii() or not token.isprintable() or len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"--auth-token-file {file}: a token has at least {SHORTEST_TOKEN} printable ASCII characters."
        )
    return token


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error}.") from error


def settings_of(arguments: argparse.Namespace) -> Any:
    """The server's settings from the command line."""
    from ragen.config.loading import load_config, plain_sections
    from ragen.llm_agent.environments import groups_of
    from ragen.llm_agent.prompts.settings import ContextSettings
    from ragen.serve.sessions import ServeSettings

    if (arguments.env is None) == (arguments.config_name is None):
        raise ConfigError("name what to serve: --env TYPE, once or more, or --config-name NAME, and not both.")
    config = load_config(arguments.config_name or "base", arguments.overrides, arguments.config_path)
    sections = plain_sections(config, SECTIONS)
    replies, most = ContextSettings.read(config), None
    if arguments.env is not None:
        types = {env_type.rpartition(":")[2]: env_type for env_type in arguments.env}
        if len(types) < len({*arguments.env}):
            raise ConfigError(f"two of --env {', '.join(arguments.env)} have the same name; rename one class.")
        tags = list(types)
        kinds = {tag: {"env_type": types[tag], "max_actions_per_traj": MAX_ACTIONS} for tag in tags}
        part = {"env_groups": len(tags), "group_size": 1, "env_configs": {"tags": tags, "n_groups": [1] * len(tags)}}
        sections["custom_envs"] = kinds
        sections["es_manager"] = {**sections["es_manager"], "sequential_env_types": [], "train": part, "val": part}
    else:
        most = replies.max_actions_per_turn
        tags = list(dict.fromkeys(tag for mode in ("train", "val") for tag, *_ in groups_of(config, mode)))
    return ServeSettings(
        config=sections,
        tags=tags,
        max_sessions=arguments.max_sessions,
        idle_timeout=arguments.idle_timeout,
        journal_dir=arguments.journal_dir,
        action_sep=replies.action_sep,
        max_actions_per_turn=most,
    )
