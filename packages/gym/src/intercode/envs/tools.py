"""An environment's actions as tools: for models that call functions, and for agents' frameworks.

Of every environment there are two: one runs code in its language, ``submit`` ends the episode. Its
traits say more of them, and may name further ones (`intercode.tool_calls.Verb`).

`tools` makes typed and documented Python functions of them, for frameworks that read a function's
signature and docstring.
"""

from __future__ import annotations

import keyword
import linecache
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, overload

from intercode.envs.traits import Traits, resolve_traits
from intercode.episode import NoAction
from intercode.tool_calls import Tool, ToolCall, Verb

Function = Callable[..., str]

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
ENDED = "[the episode has ended]"
TURN_LIMIT = "[the episode has ended: its turn limit is reached]"
ALREADY_ENDED = "[the episode has ended: this call did nothing]"


def verbs(traits: Traits) -> list[Verb]:
    """List the tools of an environment with the actions that they stand for."""
    return [_code(traits), *traits.more, _submit(traits)]


def list_tools(traits: Traits) -> list[Tool]:
    """List the tools of an environment: its language, more that it may have, and ``submit``."""
    return [verb.tool for verb in verbs(traits)]


def read_action(call: ToolCall, traits: Traits) -> str:
    """Read the action that a call asks for; a `NoAction` says why there is none."""
    verbs_by_name = {verb.tool.name: verb for verb in verbs(traits)}
    if call.name in verbs_by_name:
        return verbs_by_name[call.name].action(call.arguments)
    *other_names, last_name = map(repr, verbs_by_name)
    return NoAction(
        f"there is no tool {call.name!r}, only {', '.join(other_names)} and {last_name}"
    )


def read_call(action: str, traits: Traits) -> tuple[str, Mapping[str, Any]]:
    """Read the call that an action stands for: the inverse of `read_action`.

    Returns:
        The tool's name, and the arguments.
    """
    code, *other_verbs, submit = verbs(traits)
    for verb in (submit, *other_verbs):
        if (arguments := verb.arguments(action)) is not None:
            return verb.tool.name, arguments
    return code.tool.name, {traits.parameter: action}


def _code(traits: Traits) -> Verb:
    name, parameter = traits.language, traits.parameter

    def action(arguments: Mapping[str, Any]) -> str:
        code = arguments.get(parameter)
        if not isinstance(code, str):
            return NoAction(f"the tool {name!r} needs {parameter!r}, a text")
        return code

    tool = Tool(name, traits.does, schema({parameter: traits.parameter_description}))
    return Verb(tool, action, lambda text: {parameter: text})


def _submit(traits: Traits) -> Verb:
    answer = traits.answer or traits.may_answer

    def action(arguments: Mapping[str, Any]) -> str:
        answer_text = arguments.get(answer) if answer else None
        return f"submit {answer_text}" if answer_text else "submit"

    def arguments(text: str) -> Mapping[str, Any] | None:
        word, _, answer_text = text.strip().partition(" ")
        if word != "submit" or (answer_text and not answer):
            return None
        return {answer: answer_text.strip()} if answer_text else {}

    description = f"Hand in the {answer}." if traits.answer else "End the task: it is done."
    parameters = {answer: traits.answer_description or f"The {answer}."} if answer else {}
    tool = Tool("submit", description, schema(parameters, optional=not traits.answer))
    return Verb(tool, action, arguments)


def schema(parameters: Mapping[str, str], optional: bool = False) -> Mapping[str, object]:
    """Return the JSON schema of a tool whose parameters are texts.

    Args:
        parameters: Name → description.
        optional: Whether all may be left out; else all are required.
    """
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in parameters.items()
        },
        "required": [] if optional else list(parameters),
        "additionalProperties": False,
    }


class Tools(list[Function]):
    """The tools of an environment as functions, each for the episode that is running.

    A function returns text for a model: the observation, and a note when the episode has ended. A
    call after the end does nothing and says so. Calls from several threads wait for each other. A
    failure of the infrastructure is raised.

    Args:
        env: The environment; it may be wrapped.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._base_env = getattr(env, "unwrapped", env)
        self._traits = resolve_traits(self._base_env)
        self._lock = threading.Lock()
        super().__init__(self._functions())

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return bool(self._base_env.episode.status != "running")

    @property
    def reward(self) -> float | None:
        """The reward of the episode, not for the model; None before its end or without a score."""
        score: float | None = self._base_env.episode.reward
        return score

    def _functions(self) -> Iterator[Function]:
        for verb in verbs(self._traits):
            shows = "A note that the episode has ended."
            if verb.tool.name != "submit":
                shows = self._traits.shows
            yield _function(verb.tool, shows, partial(self._call, verb))

    def _call(self, verb: Verb, arguments: Mapping[str, Any]) -> str:
        with self._lock:
            if self.done:
                return ALREADY_ENDED
            observation, _, terminated, truncated, _ = self._env.step(verb.action(arguments))
        text = sendable(observation)
        if not terminated and not truncated:
            return text
        is_last_turn = truncated and len(self._base_env.episode.turns) >= self._base_env.max_turns
        return f"{text.rstrip()}\n{TURN_LIMIT if is_last_turn else ENDED}".lstrip()


@overload
def tools(env: Traits) -> list[Tool]: ...
@overload
def tools(env: Any) -> Tools: ...
def tools(env: Any) -> list[Tool] | Tools:
    """Make typed and documented functions of an environment's tools.

    Frameworks that build a tool from a function take them as they are::

        env = intercode.make("bash")
        query, _ = env.reset()
        bash, submit = functions = intercode.tools(env)
        print(bash("ls"))
        submit()
        print(functions.done, functions.reward)

    Args:
        env: The environment. (Traits, whose list of `Tool` this once returned, are deprecated:
            ``env.tools`` is that list.)

    Returns:
        A list of functions, with ``done`` and ``reward`` of the episode.
    """
    if isinstance(env, Traits):
        warnings.warn(
            "intercode.tools(traits) is deprecated, and will be removed in 3.0: env.tools lists "
            "tools with their schemas, intercode.tools(env) returns them as functions",
            DeprecationWarning,
            stacklevel=2,
        )
        return list_tools(env)
    return Tools(env)


def sendable(text: str) -> str:
    """Replace the bytes and half pairs that no JSON can carry."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _function(tool: Tool, shows: str, call: Callable[[Mapping[str, Any]], str]) -> Function:
    """Make a function with a tool's name, parameters, types and docstring.

    It has source text, as some frameworks read it.

    Args:
        tool: The tool.
        shows: The description of what it returns.
        call: The work: a function of the arguments by name.
    """
    properties: Mapping[str, Any] = tool.parameters["properties"]
    required_names = tool.parameters["required"]
    names = {name: _identifier(name) for name in properties}
    declarations = [
        f"{names[name]}: {_TYPES[schema['type']]}"
        + ("" if name in required_names else f" = {schema.get('default', '')!r}")
        for name, schema in properties.items()
    ]
    argument_items = ", ".join(f"{name!r}: {names[name]}" for name in properties)
    descriptions = [f"    {names[name]}: {properties[name]['description']}" for name in properties]
    takes = ["Args:", *descriptions, ""] if descriptions else []
    doc = "\n".join([tool.description, "", *takes, "Returns:", f"    {shows}", ""])
    source = (
        f"def {_identifier(tool.name)}({', '.join(declarations)}) -> str:\n"
        f"    {doc!r}\n"
        f"    return call({{{argument_items}}})\n"
    )
    file = f"<intercode tool {tool.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"call": call, "__name__": __name__}
    code = compile(source, file, "exec", dont_inherit=True)  # else its types would be texts
    exec(code, space)  # all in it is quoted or an identifier
    function: Function = space[_identifier(tool.name)]
    return function


def _identifier(name: str) -> str:
    """Return a Python name that is as like a tool's or a parameter's as can be."""
    identifier = re.sub(r"\W", "_", name)
    return (
        f"{identifier}_"
        if keyword.iskeyword(identifier) or not identifier.isidentifier()
        else identifier
    )
