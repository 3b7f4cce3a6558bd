"""Requests without a session: about the server, its environments and their tasks.

They are OpenEnv's, but for those that would begin an episode in a single request, and `/metrics`.
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
from intercode_integrations.serve import wire
from intercode_integrations.serve.catalog import Offer
from intercode_integrations.serve.http import refusal, response
from intercode_integrations.serve.wire import TaskQuery


class Routes:
    """Answers requests.

    Args:
        offers: The environments by their names; the first is that of addresses that name none.
    """

    def __init__(self, offers: Mapping[str, Offer]) -> None:
        self._offers = offers

    def offer(self, words: Sequence[str]) -> Offer | None:
        """Find the environment that an address names; None: there is none of that name.

        Args:
            words: The address, without slashes.
        """
        if len(words) == 1:
            return next(iter(self._offers.values()))
        return self._offers.get(words[0]) if len(words) == 2 else None

    async def answer(self, method: str, words: Sequence[str], body: bytes | None) -> Response:
        """Answer a request.

        Args:
            method: GET or POST, for instance.
            words: The address, without slashes.
            body: None: it is too long.
        """
        offer, last = self.offer(words), words[-1]
        takes, answer = "GET", self._of_all().get(last) if len(words) == 1 else None
        if offer is not None and last in _GET:
            answer = partial(_GET[last], offer)
        elif offer is not None and last in _POST and len(words) == 2:
            takes, answer = "POST", lambda: _POST[last](offer, wire.read(body or b"{}", TaskQuery))
        elif words == ["mcp"]:
            takes, answer = "POST", lambda: _NO_MCP
        if answer is None:
            return refusal(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        if method != takes:
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"the method here is {takes}")
        if body is None:
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too long")
        try:  # on a thread, as a split may have to be read
            return response(HTTPStatus.OK, wire.json(await asyncio.to_thread(answer)))
        except (wire.Fault, InterCodeError) as fault:
            error = fault.error if isinstance(fault, wire.Fault) else fault
            return refusal(HTTPStatus.BAD_REQUEST, str(error), error=type(error).__name__)

    def _of_all(self) -> dict[str, Callable[[], Any]]:
        return {"list_environments": lambda: [*self._offers], "openapi.json": self._openapi}

    def _openapi(self) -> dict[str, Any]:
        """Describe the addresses, as far as OpenEnv's validator asks."""
        paths: dict[str, Any] = {
            f"/{name}": {"get": {}}
            for name in ("health", "metrics", "metadata", "schema", *self._of_all())
        }
        for name in self._offers:
            paths |= {f"/{name}/{last}": {"get": {}} for last in _GET}
            paths |= {f"/{name}/{last}": {"post": {}} for last in _POST}
        about = {"title": "InterCode", "version": __version__}
        return {"openapi": "3.1.0", "info": about, "paths": {**paths, "/mcp": {"post": {}}}}


def _splits(offer: Offer) -> list[dict[str, str]]:
    return [
        {"name": name, "type": name if name in ("train", "test") else "validation"}
        for name in offer.splits
    ]


def _tasks(offer: Offer, query: TaskQuery) -> dict[str, Any]:
    return {"tasks": offer.told(query.split), "env_name": offer.name}


def _num_tasks(offer: Offer, query: TaskQuery) -> dict[str, Any]:
    return {"num_tasks": len(offer.tasks(query.split))}


def _task(offer: Offer, query: TaskQuery) -> dict[str, Any]:
    offer.tasks(query.split).at(query.index)  # refuses a number that no task has
    return {"task": offer.told(query.split, query.index, query.index + 1)[0]}


def _task_range(offer: Offer, query: TaskQuery) -> dict[str, Any]:
    return {"tasks": offer.told(query.split, query.start, query.stop)}


_GET: Mapping[str, Callable[[Offer], Any]] = {
    "metadata": Offer.metadata,
    "schema": Offer.schema,
    "splits": _splits,
}
_POST: Mapping[str, Callable[[Offer, TaskQuery], Any]] = {
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
