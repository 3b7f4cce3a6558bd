"""Let a client of the Model Context Protocol solve tasks: Claude Code, Codex, or a framework.

The client starts this command, and has the environment's tools: bash, sql or python, and submit.
Its actions are recorded as by 'intercode run'. Only the record contains the score, unless
--show-score reports it to the client, too. If a client leaves without submit, the current state is
scored; a client without any action leaves no record.

With --http you start this command; it prints a URL for each started episode's client.

Examples:
  claude mcp add puzzle -- intercode mcp bash --task archive-01 --out ~/runs/archive-01
  codex mcp add puzzle -- intercode mcp bash --task archive-01 --out ~/runs/archive-01
  intercode mcp sql --http --workers 8 --epochs 4 --out runs/mcp
  intercode show ~/runs/archive-01

exit code: 0 if every episode has a result, solved or not; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse

from intercode.cli.commands.run import add_tasks
from intercode.errors import UsageError
from intercode.spec import add_environment, port, positive
from intercode_integrations.serve import TOKEN

LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 900
"""Seconds without a call after which a client over HTTP counts as disconnected."""
_OMITTED_OPTIONS = "retries on locked accept show json max_connections model_timeout"
"""Options of ``intercode run`` that this command lacks or replaces. For instance, retries are
impossible, because a client's actions cannot be repeated."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``intercode mcp`` to a parser."""
    add_environment(parser)
    client_group = parser.add_argument_group("client")
    client_group.add_argument(
        "--show-score", action="store_true", help="report the reward to the client at the end"
    )
    client_group.add_argument(
        "--idle",
        type=positive,
        metavar="S",
        help="seconds without a call after which a client counts as disconnected "
        f"(default: none; {IDLE_SECONDS} with --http)",
    )
    http_group = parser.add_argument_group("HTTP")
    http_group.add_argument(
        "--http", action="store_true", help="serve over HTTP, with parallel episodes"
    )
    http_group.add_argument("--host", help=f"address of the server (default: {LOOPBACK})")
    http_group.add_argument(
        "--port", type=port, metavar="N", help="port of the server (default: any free one)"
    )
    http_group.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the token that clients must send (default: ${TOKEN})",
    )
    http_group.add_argument(
        "--token", help="the token itself; other users of this machine can see it in 'ps'"
    )
    http_group.add_argument("--json", action="store_true", help="print the URLs as lines of JSON")
    add_tasks(parser, excluded_names=_OMITTED_OPTIONS)


def execute(args: argparse.Namespace) -> int:
    """Serve until every episode has ended, or the client has disconnected; return the exit code."""
    from intercode_integrations.mcp import run as mcp

    if not args.http and (args.host or args.port or args.token or args.token_file or args.json):
        raise UsageError("--host, --port, --token, --token-file and --json are for --http")
    args.host = args.host or LOOPBACK
    args.idle = args.idle or (IDLE_SECONDS if args.http else None)
    return mcp.execute(args)
