"""Serve environments over OpenEnv's WebSocket: each client has a session with its own sandbox.

A client chooses environment, split, task and seed; this command's options, or a benchmark's
intercode.toml, set the rest. Only this machine can connect, unless --host names another address,
which requires a token. SIGTERM or Ctrl-C lets running episodes end; a second signal ends them.

Examples:
  intercode serve bash
  intercode serve bash sql my-benchmark/ --port 8000 --max-sessions 500 --workers 2
  intercode serve bash --host 0.0.0.0 --token-file token.txt

The log is one line of JSON for each event, on standard error. Programs connect by
intercode.connect("http://127.0.0.1:8000"), or by OpenEnv's GenericEnvClient(base_url=...).
"""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from intercode.cli.terminal import output
from intercode.errors import UsageError
from intercode.spec import port, positive, seconds, size
from intercode_integrations.serve import TOKEN
from intercode_sandbox.units import MIB


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``intercode serve`` to a parser."""
    parser.add_argument(
        "env", nargs="+", metavar="ENV", help="an environment, or a benchmark's folder"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of the server (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=port,
        default=8000,
        help="port of the server; 0: any free one (default: 8000)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the environments' URLs as a line of JSON"
    )
    parser.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="worker processes (default: 1)"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name that clients may use, in addition to this machine's and localhost",
    )
    token_group = parser.add_argument_group("access token of clients")
    token_group.add_argument(
        "--token-file", metavar="FILE", help=f"file with the token (default: ${TOKEN})"
    )
    token_group.add_argument(
        "--token",
        metavar="TOKEN",
        help="the token itself; other users of this machine can see it in 'ps'",
    )
    session_group = parser.add_argument_group("sessions")
    session_group.add_argument(
        "--max-sessions",
        type=positive,
        metavar="N",
        default=64,
        help="maximum open sessions (default: 64)",
    )
    session_group.add_argument(
        "--idle",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="end a session without a message for this time (default: 600)",
    )
    session_group.add_argument(
        "--lifetime",
        type=seconds,
        metavar="SECONDS",
        help="maximum duration of a session (default: no limit)",
    )
    session_group.add_argument(
        "--drain",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="at shutdown, time for running episodes to end (default: 30)",
    )
    session_group.add_argument(
        "--patience",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="disconnect a client that does not read its data for this time (default: 30)",
    )
    session_group.add_argument(
        "--max-message",
        type=size,
        default=MIB,
        metavar="SIZE",
        help="maximum size of a client's message (default: 1M)",
    )
    session_group.add_argument(
        "--rate",
        type=positive,
        default=1000,
        metavar="N",
        help="maximum messages a second from a client (default: 1000)",
    )


def execute(args: argparse.Namespace) -> int:
    """Serve until a signal arrives, and return the exit code."""
    if find_spec("websockets") is None:
        raise UsageError("serving needs the package websockets: pip install 'intercode-gym[serve]'")
    from intercode.request_guard import RequestGuard, is_loopback
    from intercode_integrations.serve.catalog import ServedEnvironment, index_entries
    from intercode_integrations.serve.server_processes import listen, run
    from intercode_integrations.serve.session import SessionLimits

    token = read_token(args)
    if token is None and not is_loopback(args.host):
        raise UsageError(
            f"--host {args.host}: clients on other machines need a token: openssl rand -hex 32 > "
            "token.txt, then --token-file token.txt"
        )
    entries = index_entries(ServedEnvironment(address, args.max_message) for address in args.env)
    limits = SessionLimits(
        max_sessions=args.max_sessions,
        idle=args.idle,
        lifetime=args.lifetime,
        drain=args.drain,
        patience=args.patience,
        max_message=args.max_message,
        rate=args.rate,
    )
    listeners = listen(args.host, args.port, args.workers)
    url_host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{url_host}:{listeners[0].getsockname()[1]}"

    def announce() -> None:
        urls = {env_name: f"{url}/{quote(env_name)}" for env_name in entries}
        announcement = (
            json.dumps({"urls": urls}) if args.json else f"serving {', '.join(entries)} at {url}"
        )
        print(announcement, file=output(), flush=True)

    guard = RequestGuard(token, [args.host, *args.allow_host], option="--allow-host")
    run(list(entries.values()), limits, guard, listeners, announce)
    return 0


def read_token(args: argparse.Namespace) -> str | None:
    """Return the token for clients, from a file, an option or a variable; None without a token.

    Raises:
        UsageError: The token cannot be read, is empty, or is invalid in a header.
    """
    token = os.environ.pop(TOKEN, None)  # removed, so child processes do not receive the token
    if args.token_file is not None:
        try:
            token = Path(args.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise UsageError(f"--token-file {args.token_file}: cannot be read: {error}") from None
    token = token if args.token is None else args.token
    if token is None:
        return None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError("the token is empty, or has characters that are not valid in a header")
    return token
