"""HTTP requests that need no session: about the server, its environments and their tasks.

The routes are those of OpenEnv. Its routes that run an episode in a single request are missing.
`EnvironmentServer` itself answers requests of ``/health`` and ``/metrics``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from websockets.http11 import Response

from intercode import __version__
from intercode.errors import InterCodeError
from intercode_integrations.serve import messages
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.http import refusal, response
from intercode_integrations.serve.messages import TaskListQuery


class HttpRoutes:
    """The responses to HTTP requests that need no session.

    Args:
        entries: The environments by their names. An address without a name denotes the first one.
    """

    def __init__(self, entries: Mapping[str, ServedEnvironment]) -> None:
        self._entries = entries

    def find_entry(self, path_parts: Sequence[str]) -> ServedEnvironment | None:
        """Return the environment that an address names; None if no environment has the name.

        Args:
            path_parts: The parts of the URL's path, without slashes. The last part names a route,
                and is ignored.
        """
        if len(path_parts) == 1:
            return next(iter(self._entries.values()))
        return self._entries.get(path_parts[0]) if len(path_parts) == 2 else None

    async def answer(self, method: str, path_parts: Sequence[str], body: bytes | None) -> Response:
        """Answer a request.

        Args:
            method: The HTTP method, such as GET or POST.
            path_parts: The parts of the URL's path, without slashes.
            body: The body of the request; None: the body is too long, or its length is unknown.
        """
        entry, route_name = self.find_entry(path_parts), path_parts[-1]
        expected_method, handler = (
            "GET",
            self._global_routes().get(route_name) if len(path_parts) == 1 else None,
        )
        if entry is not None and route_name in _GET:
            handler = partial(_GET[route_name], entry)
        elif entry is not None and route_name in _POST and len(path_parts) == 2:
            expected_method, handler = (
                "POST",
                lambda: _POST[route_name](entry, messages.read(body or b"{}", TaskListQuery)),
            )
        elif path_parts == ["mcp"]:
            expected_method, handler = "POST", lambda: _NO_MCP
        if handler is None:
            return refusal(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        if method != expected_method:
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"the method here is {expected_method}")
        if body is None:
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too long")
        try:  # on a thread, because loading the tasks of a split may block
            return response(HTTPStatus.OK, messages.json(await asyncio.to_thread(handler)))
        except (messages.MessageFault, InterCodeError) as fault:
            error = fault.error if isinstance(fault, messages.MessageFault) else fault
            return refusal(HTTPStatus.BAD_REQUEST, str(error), error=type(error).__name__)

    def _global_routes(self) -> dict[str, Callable[[], Any]]:
        return {"list_environments": lambda: [*self._entries], "openapi.json": self._openapi}

    def _openapi(self) -> dict[str, Any]:
        """Return the routes as an OpenAPI document, as detailed as OpenEnv's validator requires."""
        paths: dict[str, Any] = {
            f"/{path_segment}": {"get": {}}
            for path_segment in ("health", "metrics", "metadata", "schema", *self._global_routes())
        }
        for path_segment in self._entries:
            paths |= {f"/{path_segment}/{route_name}": {"get": {}} for route_name in _GET}
            paths |= {f"/{path_segment}/{route_name}": {"post": {}} for route_name in _POST}
        api_info = {"title": "InterCode", "version": __version__}
        return {"openapi": "3.1.0", "info": api_info, "paths": {**paths, "/mcp": {"post": {}}}}


def _splits(entry: ServedEnvironment) -> list[dict[str, str]]:
    return [
        {"name": name, "type": name if name in ("train", "test") else "validation"}
        for name in entry.splits
    ]


def _tasks(entry: ServedEnvironment, query: TaskListQuery) -> dict[str, Any]:
    return {"tasks": entry.task_facts(query.split), "env_name": entry.name}


def _num_tasks(entry: ServedEnvironment, query: TaskListQuery) -> dict[str, Any]:
    return {"num_tasks": len(entry.tasks(query.split))}


def _task(entry: ServedEnvironment, query: TaskListQuery) -> dict[str, Any]:
    entry.tasks(query.split).at(query.index)  # raises an error if no task has this index
    return {"task": entry.task_facts(query.split, query.index, query.index + 1)[0]}


def _task_range(entry: ServedEnvironment, query: TaskListQuery) -> dict[str, Any]:
    return {"tasks": entry.task_facts(query.split, query.start, query.stop)}


_GET: Mapping[str, Callable[[ServedEnvironment], Any]] = {
    "metadata": ServedEnvironment.metadata,
    "schema": ServedEnvironment.schema,
    "splits": _splits,
}
_POST: Mapping[str, Callable[[ServedEnvironment, TaskListQuery], Any]] = {
    "tasks": _tasks,
    "num_tasks": _num_tasks,
    "task": _task,
    "task_range": _task_range,
}
_NO_MCP = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32601, "message": "there is no MCP here: 'intercode mcp' has it"},
}
