r"""Serve a model on this machine within limits, with every call recorded, and without its key.

Clients of OpenAI's and Anthropic's APIs reach it at a port of 127.0.0.1 with a token; the key stays
in this process. The gateway refuses fields outside its allowlist, such as tools that the provider
runs, URLs that it fetches and responses that it stores. Options permit them.

Examples:
  intercode gateway --upstream openai/gpt-5 --port 8080 --record calls.jsonl --max-cost 5
  intercode gateway --upstream anthropic/claude-sonnet-4-5 --max-calls 200 -- python agent.py
  intercode gateway --upstream openai-compatible/mine --base-url http://localhost:8000/v1 \
      --token-file token.txt --allow-model fast=mine

With a command after '--' the gateway serves only that command, and ends with it. The command finds
the address in OPENAI_BASE_URL and ANTHROPIC_BASE_URL, and the token in OPENAI_API_KEY and
ANTHROPIC_API_KEY. Otherwise SIGTERM or Ctrl-C stops the gateway after its current calls; a second
signal ends them. The gateway then prints the total usage.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from shutil import which
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from intercode.cli.terminal import dollars, one_line, output, print_message, safe
from intercode.errors import InterCodeError, UsageError
from intercode.spec import (
    ModelSpec,
    RunOptions,
    add_options,
    list_section_options,
    port,
    positive,
    seconds,
    size,
)
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.envs.options import OptionDescription
    from intercode_integrations.gateway import GatewayPolicy, GatewaySession, Upstream

LOOPBACK = "127.0.0.1"
_CONNECTIONS = 1024
"""Maximum number of concurrent clients, each with a thread. Further clients wait to be accepted."""
_RESERVE = 128
"""Number of descriptors kept free for other uses. A client and its call to the model need one each.
"""
_SHORTEST_TOKEN = 16


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``intercode gateway`` to a parser."""
    model_options = list_section_options(ModelSpec)
    for option_name, noun in (("max_cost", "cost"), ("max_tokens", "tokens")):
        help_text = f"maximum {noun} of all calls together"
        model_options = {
            **model_options,
            option_name: msgspec.structs.replace(model_options[option_name], help=help_text),
        }
    parser.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help=("a command after '--': serve only its processes, and end with it"),
    )
    parser.add_argument(
        "--upstream",
        required=True,
        metavar="NAME",
        help=("the model: PROVIDER/NAME, such as openai/gpt-5"),
    )
    add_options(parser, model_options, "base_url")
    parser.add_argument(
        "--port",
        type=port,
        default=0,
        metavar="N",
        help=("port of the gateway at 127.0.0.1 (default: any free one)"),
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that clients send; a missing file is created, readable only by "
        "you (default: a new token, which is printed)",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help=("append each call to this file, as a line of JSON, without keys"),
    )
    parser.add_argument(
        "--json", action="store_true", help="print the addresses and the spending as JSON lines"
    )
    _add_limits(parser.add_argument_group("limits"), model_options)
    _add_permissions(parser.add_argument_group("permissions of clients"))
    cache_group = parser.add_argument_group("cache")
    add_options(cache_group, model_options, "cache")
    cache_group.add_argument(
        "--cache-sampled",
        action="store_true",
        help=(
            "also reuse replies at a temperature above 0 without a seed: equal requests get "
            "equal replies"
        ),
    )


def _add_limits(
    limits: argparse._ArgumentGroup, model_options: Mapping[str, OptionDescription]
) -> None:
    """Add the options that limit all calls together, each call, and the record."""
    add_options(limits, model_options, "max_cost", "max_tokens", "prices", "reply_tokens")
    limits.add_argument("--max-calls", type=positive, metavar="N", help=("maximum number of calls"))
    limits.add_argument(
        "--rate", type=positive, metavar="N", help=("maximum calls a minute; further calls wait")
    )
    limits.add_argument(
        "--token-rate",
        type=positive,
        metavar="N",
        help=("maximum tokens a minute; further calls wait"),
    )
    limits.add_argument(
        "--at-once",
        type=positive,
        default=64,
        metavar="N",
        help=("maximum parallel calls (default: 64)"),
    )
    add_options(limits, list_section_options(RunOptions), "model_timeout")
    limits.add_argument(
        "--max-context",
        type=size,
        metavar="SIZE",
        help=("maximum size of a dialogue with its tools"),
    )
    limits.add_argument(
        "--record-limit",
        type=size,
        default="16G",
        metavar="SIZE",
        help=(
            "maximum size of the file of --record; at this size, calls are refused (default: 16G)"
        ),
    )
    limits.add_argument(
        "--drain",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="at shutdown, time for running calls to end (default: 30)",
    )


def _add_permissions(group: argparse._ArgumentGroup) -> None:
    """Add the options that permit clients more than answers of a single model."""
    group.add_argument(
        "--allow-model",
        action="append",
        metavar="NAME[=MODEL]",
        help="a model name that clients may use, and the provider's name for it; may be given "
        "several times (default: every name means the model of --upstream)",
    )
    group.add_argument(
        "--hosted",
        choices=("refuse", "drop", "pass"),
        default="refuse",
        help="policy for tools that the provider executes, such as web search (default: refuse)",
    )
    group.add_argument(
        "--remote",
        action="store_true",
        help=("allow URLs that the provider fetches, and files that it stores"),
    )
    group.add_argument(
        "--stored", action="store_true", help=("allow responses that the provider stores")
    )


def execute(args: argparse.Namespace) -> int:
    """Serve until a signal arrives, or until the command has ended.

    Returns:
        The exit code: that of the command, or 0 without a command.
    """
    from intercode.models.cache import ReplyCache
    from intercode.models.limits import Budget, RateLimit, Retry
    from intercode.models.local.store import ensure
    from intercode.models.prices import ModelPrices
    from intercode.models.remote import ModelCallContext
    from intercode.models.upstream import serve_upstream
    from intercode_integrations.gateway import Gateway
    from intercode_integrations.gateway.call_log import CallLedger, CallLog

    if args.command and which(args.command[0]) is None:
        raise UsageError(f"{args.command[0]} cannot be started: there is no such program")
    budget = Budget(args.max_cost, args.max_tokens)
    call_context = ModelCallContext(
        rate_limit=RateLimit(args.rate, args.token_rate),
        budget=budget,
        cache=ReplyCache(args.cache) if args.cache else None,
        retry=Retry() if args.model_timeout is None else Retry(timeout=args.model_timeout),
    )
    prices = ModelPrices(args.prices)
    with ExitStack() as stack:
        stack.enter_context(_refusals())
        ensure(args.upstream, print_message)
        upstream = stack.enter_context(
            serve_upstream(args.upstream, args.base_url, args.at_once or 1)
        )
        _hide_keys(upstream)
        gateway = Gateway(upstream, call_context=call_context, policy=_policy(args), prices=prices)
        stack.enter_context(gateway)
        token = _token(args.token_file)
        ledger = CallLedger(budget)
        if args.record is not None:
            journal = CallLog(args.record, upstream.key, token, args.record_limit)
            ledger.file = stack.enter_context(closing(journal))
        session = stack.enter_context(
            gateway.open_session(
                record=ledger.note, token=token, keep=False, is_full=ledger.is_full
            )
        )
        signal_queue = stack.enter_context(_signals())
        ledger.failed = lambda: signal_queue.put(0)
        port = stack.enter_context(_open_port(session, args.port))
        client_variables = _client_variables(upstream, port, token)
        if args.command:
            exit_code = _run(
                args.command, {**_inherited_variables(upstream), **client_variables}, signal_queue
            )
        else:
            print(_greeting(args, upstream, port, client_variables), file=output(), flush=True)
            signal_queue.get()
            exit_code = 0
        with suppress(KeyboardInterrupt):  # a second signal ends the wait
            session.drain(args.drain)
    total_usage = ledger.spent()
    if args.json or not args.command:
        print(
            json.dumps(total_usage) if args.json else _summary_text(total_usage),
            file=output(),
            flush=True,
        )
    else:
        print_message(_summary_text(total_usage))  # standard output is the command's
    if ledger.error is not None:
        raise ledger.error
    return exit_code


def _policy(args: argparse.Namespace) -> GatewayPolicy:
    from intercode_integrations.gateway import GatewayPolicy

    models = None
    if args.allow_model:
        pairs = (option.partition("=") for option in args.allow_model)
        models = {client_name: model or client_name for client_name, _, model in pairs}
        if not all(models):
            raise UsageError("--allow-model needs a name: NAME, or NAME=MODEL")
    return GatewayPolicy(
        hosted=args.hosted,
        remote=args.remote,
        stored=args.stored,
        models=models,
        max_calls=args.max_calls,
        max_context=args.max_context,
        reply_tokens=args.reply_tokens,
        cache_sampled=args.cache_sampled,
        at_once=args.at_once,
    )


def _token(file: str | None) -> str:
    """Return the clients' token from a file; a missing file is created with a new token.

    The new file is readable only by this user. Without a file, the token is new.

    Raises:
        UsageError: The file cannot be read or created, other users may access it, or its token is
            too short or contains blanks.
    """
    new_token = secrets.token_urlsafe(32)
    if file is None:
        return new_token
    try:
        open_flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(file, open_flags, 0o600), "w", encoding="ascii") as output_file:
            output_file.write(new_token + "\n")
        return new_token
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--token-file {file}: cannot be created: {error.strerror}") from None
    try:
        with Path(file).open(encoding="ascii") as input_file:
            if os.fstat(input_file.fileno()).st_mode & 0o077:
                raise UsageError(
                    f"--token-file {file}: other users can read the file: chmod 600 {file}"
                )
            token = input_file.read().strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--token-file {file}: cannot be read: {error}") from None
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise UsageError(
            f"--token-file {file}: a token has at least {_SHORTEST_TOKEN} characters, and no blanks"
        )
    return token


@contextmanager
def _open_port(session: GatewaySession, port: int) -> Iterator[int]:
    """Serve a session at a port of 127.0.0.1 while the block runs; yield the port's number.

    Raises:
        UsageError: The port is not available.
    """
    from intercode.connection_admission import ConnectionQueue
    from intercode_sandbox.forwarding import Forward

    _, descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit, descriptor_limit))
    admission = ConnectionQueue()

    def serve(connection: socket.socket) -> None:
        with admission.pending_entry(connection) as admit:
            session.serve(connection, admit)

    max_connections = max(1, min(_CONNECTIONS, (descriptor_limit - _RESERVE) // 2))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        forward = Forward(listener, port, serve, max_connections)
    except InterCodeError as error:
        raise UsageError(f"port {port} of {LOOPBACK} is not available: {error.__cause__}") from None
    with closing(forward):
        yield listener.getsockname()[1]
    if forward.error is not None:
        print_message(
            f"{format_count(forward.counts.failed, 'connection')} failed: {forward.error!r}"
        )


def _client_variables(upstream: Upstream, port: int, token: str) -> dict[str, str]:
    """Return the environment variables by which clients find the gateway's address and token."""
    from intercode_integrations.gateway.gateway import PROVIDER_PROTOCOLS

    url, variables = f"http://{LOOPBACK}:{port}", dict[str, str]()
    protocols = PROVIDER_PROTOCOLS.get(upstream.provider, ("chat", "messages"))
    if "chat" in protocols:
        variables |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": token}
    if "messages" in protocols:
        variables |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": token}
    return variables


def _greeting(
    args: argparse.Namespace, upstream: Upstream, port: int, client_variables: Mapping[str, str]
) -> str:
    """Return the text that states the gateway's address and the settings of clients.

    A token that is in a file is not shown.
    """
    url = f"http://{LOOPBACK}:{port}"
    if args.json:
        token_fields = {"token_file": args.token_file} if args.token_file else {}
        env = {
            variable: value
            for variable, value in client_variables.items()
            if not (token_fields and variable.endswith("_KEY"))
        }
        return json.dumps({"url": url, "upstream": upstream.name, "env": env, **token_fields})
    lines = [f"{safe(upstream.name)} at {url}, for clients with"]
    for prefix in ("OPENAI", "ANTHROPIC"):
        if (base_url := client_variables.get(f"{prefix}_BASE_URL")) is not None:
            key_expression = f'"$(cat {safe(args.token_file)})"' if args.token_file else None
            api_key = key_expression or client_variables[f"{prefix}_API_KEY"]
            lines.append(f"  export {prefix}_BASE_URL={base_url} {prefix}_API_KEY={api_key}")
    return "\n".join(lines)


@contextmanager
def _signals() -> Iterator[SimpleQueue[int]]:
    """Yield a queue that receives each SIGINT or SIGTERM; the second one also raises an exception.

    The exception is KeyboardInterrupt. Python runs a signal handler between two instructions of the
    main thread. If a signal arrives just before that thread starts to wait, the handler would run
    only after the wait. Therefore a second thread reads the signals from a descriptor, to which
    Python's C code writes them at once.
    """
    signal_queue: SimpleQueue[int] = SimpleQueue()
    reader_fd, writer_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer_fd, False)

    def forward_signals() -> None:
        with os.fdopen(reader_fd, "rb", buffering=0) as signal_pipe:
            while signal_number := signal_pipe.read(1):
                signal_queue.put(signal_number[0])

    def handle(signal_number: int, frame: FrameType | None) -> None:
        for handled_number in previous_handlers:
            signal.signal(handled_number, signal.default_int_handler)

    previous_handlers = {
        signal_number: signal.getsignal(signal_number)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    threading.Thread(target=forward_signals, daemon=True).start()
    previous_fd = signal.set_wakeup_fd(writer_fd, warn_on_full_buffer=False)
    for signal_number in previous_handlers:
        signal.signal(signal_number, handle)
    try:
        yield signal_queue
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
        signal.set_wakeup_fd(previous_fd)
        os.close(writer_fd)


def _hide_keys(upstream: Upstream) -> None:
    """Hide model keys in this process's environment, which processes of the same user can read."""
    from intercode_sandbox.native.syscalls import hide_variables

    hide_variables(os.environ.keys() - _inherited_variables(upstream).keys())


def _inherited_variables(upstream: Upstream) -> dict[str, str]:
    """Return this process's environment without model keys, so a command must use the gateway."""
    from intercode.models.providers import PROVIDERS

    key_names = {provider.key for provider in PROVIDERS.values()}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in key_names and not (upstream.key and upstream.key in value)
    }


def _run(command: Sequence[str], env: Mapping[str, str], signal_queue: SimpleQueue[int]) -> int:
    """Run a command until its end, and return its exit code.

    A first SIGTERM is forwarded to the command. A terminal itself sends Ctrl-C to the command. A
    second signal kills the command. A 0 in the queue, which reports that a call could not be
    recorded, has the effect of SIGTERM.
    """
    try:
        process = subprocess.Popen(command, env=dict(env))
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from None

    def forward_signal() -> None:
        if signal_queue.get() in (0, signal.SIGTERM):
            process.terminate()

    threading.Thread(target=forward_signal, daemon=True).start()
    try:
        exit_code = process.wait()
    except KeyboardInterrupt:
        process.kill()
        exit_code = process.wait()
    return exit_code if exit_code >= 0 else 128 - exit_code


def _summary_text(total_usage: Mapping[str, Any]) -> str:
    """Return a sentence about the total calls, tokens and cost."""
    notes = [f"{total_usage['cached']} from the cache"] if total_usage["cached"] else []
    notes += [f"{total_usage['errors']} without a whole answer"] if total_usage["errors"] else []
    notes_text = f" ({', '.join(notes)})" if notes else ""
    cost_text = (
        "at a price that is not known"
        if total_usage["cost"] is None
        else dollars(total_usage["cost"])
    )
    summary = (
        f"{format_count(total_usage['calls'], 'call')}{notes_text}: "
        f"{total_usage['input_tokens']} input and "
        f"{total_usage['output_tokens']} output tokens, {cost_text}"
    )
    if total_usage["presumed_tokens"]:
        price_text = (
            f", {dollars(total_usage['presumed_cost'])}" if total_usage["presumed_cost"] else ""
        )
        tokens = total_usage["presumed_tokens"]
        summary += f"; and at most {tokens} tokens{price_text} for answers that were lost"
    return summary


class _RefusalLogHandler(logging.Handler):
    """A log handler that prints refusals of the gateway and failures of the provider."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            print_message(one_line(record.getMessage(), 400))


@contextmanager
def _refusals() -> Iterator[None]:
    """Print the gateway's refusals and the provider's failures while the block runs."""
    handler = _RefusalLogHandler()
    loggers = [
        logging.getLogger(logger_name)
        for logger_name in ("intercode_integrations.gateway", "intercode.models.remote")
    ]
    previous_levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, previous_levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
