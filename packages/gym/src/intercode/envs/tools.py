"""Tools: an environment's actions for models that call functions, and for agent frameworks.

Every environment has two tools: one runs code in the environment's language, and ``submit`` ends
the episode. The environment's traits describe both, and may add further tools
(`intercode.tool_calls.ActionTool`).

`tools` converts the tools to typed and documented Python functions, for frameworks that read a
function's signature and docstring.
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
from intercode.tool_calls import ActionTool, Tool, ToolCall

Function = Callable[..., str]

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
ENDED = "[the episode has ended]"
TURN_LIMIT = "[the episode has ended: its turn limit is reached]"
ALREADY_ENDED = "[the episode has ended: this call did nothing]"


def verbs(traits: Traits) -> list[ActionTool]:
    """List the tools of an environment with their conversions to and from actions."""
    return [_code(traits), *traits.more, _submit(traits)]


def list_tools(traits: Traits) -> list[Tool]:
    """List the tools of an environment: one that runs code, further tools, and ``submit``."""
    return [verb.tool for verb in verbs(traits)]


def read_action(call: ToolCall, traits: Traits) -> str:
    """Return the action of a tool call; for an invalid call, a `NoAction` with the reason."""
    verbs_by_name = {verb.tool.name: verb for verb in verbs(traits)}
    if call.name in verbs_by_name:
        return verbs_by_name[call.name].action(call.arguments)
    *other_names, last_name = map(repr, verbs_by_name)
    return NoAction(
        f"there is no tool {call.name!r}, only {', '.join(other_names)} and {last_name}"
    )


def read_call(action: str, traits: Traits) -> tuple[str, Mapping[str, Any]]:
    """Return the tool call that is equivalent to an action: the inverse of `read_action`.

    Returns:
        The tool's name and its arguments by name.
    """
    code, *other_verbs, submit = verbs(traits)
    for verb in (submit, *other_verbs):
        if (arguments := verb.arguments(action)) is not None:
            return verb.tool.name, arguments
    return code.tool.name, {traits.parameter: action}


def _code(traits: Traits) -> ActionTool:
    name, parameter = traits.language, traits.parameter

    def action(arguments: Mapping[str, Any]) -> str:
        code = arguments.get(parameter)
        if not isinstance(code, str):
            return NoAction(f"the tool {name!r} needs {parameter!r}, a text")
        return code

    tool = Tool(name, traits.does, schema({parameter: traits.parameter_description}))
    return ActionTool(tool, action, lambda text: {parameter: text})


def _submit(traits: Traits) -> ActionTool:
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
    return ActionTool(tool, action, arguments)


def schema(parameters: Mapping[str, str], optional: bool = False) -> Mapping[str, object]:
    """Return the JSON schema of a tool whose parameters are texts.

    Args:
        parameters: Name → description.
        optional: Whether all parameters are optional; if False, all are required.
    """
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in parameters.items()
        },
        "required": [] if optional else list(parameters),
        "additionalProperties": False,
    }


class EnvTools(list[Function]):
    """The tools of an environment as functions that act on the running episode.

    A function returns text for a model: the observation, and a note at the end of the episode. A
    call after the end does nothing and returns a note. Calls from several threads are serialised.
    Infrastructure failures are raised, as by `step`.

    Args:
        env: The environment, wrapped or not.
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
        """The episode's reward in [0, 1], which the model must not see; None: no score."""
        score: float | None = self._base_env.episode.reward
        return score

    def _functions(self) -> Iterator[Function]:
        for verb in verbs(self._traits):
            result_description = "A note that the episode has ended."
            if verb.tool.name != "submit":
                result_description = self._traits.shows
            yield _function(verb.tool, result_description, partial(self._call, verb))

    def _call(self, verb: ActionTool, arguments: Mapping[str, Any]) -> str:
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
def tools(env: Any) -> EnvTools: ...
def tools(env: Any) -> list[Tool] | EnvTools:
    """Convert an environment's tools to typed and documented functions.

    Frameworks that build a tool from a function accept these functions unchanged::

        env = intercode.make("bash")
        query, _ = env.reset()
        bash, submit = functions = intercode.tools(env)
        print(bash("ls"))
        submit()
        print(functions.done, functions.reward)

    Args:
        env: The environment. For `Traits` the function returns a list of `Tool`; this use is
            deprecated, because ``env.tools`` is the same list.

    Returns:
        A list of functions, with the attributes ``done`` and ``reward`` of the episode.
    """
    if isinstance(env, Traits):
        warnings.warn(
            "intercode.tools(traits) is deprecated, and will be removed in 3.0: env.tools lists "
            "tools with their schemas, intercode.tools(env) returns them as functions",
            DeprecationWarning,
            stacklevel=2,
        )
        return list_tools(env)
    return EnvTools(env)


def sendable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by question marks.

    Python represents the undecodable bytes of an output as such surrogates.
    """
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _function(
    tool: Tool, result_description: str, call: Callable[[Mapping[str, Any]], str]
) -> Function:
    """Return a function with a tool's name, parameters, types and docstring.

    The function is compiled from generated source text, which `inspect` finds, because some
    frameworks read a function's source.

    Args:
        tool: The tool.
        result_description: The description of the result.
        call: The implementation, which takes the arguments by name.
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
    argument_lines = ["Args:", *descriptions, ""] if descriptions else []
    doc = "\n".join(
        [tool.description, "", *argument_lines, "Returns:", f"    {result_description}", ""]
    )
    source = (
        f"def {_identifier(tool.name)}({', '.join(declarations)}) -> str:\n"
        f"    {doc!r}\n"
        f"    return call({{{argument_items}}})\n"
    )
    file = f"<intercode tool {tool.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"call": call, "__name__": __name__}
    # Without `dont_inherit`, this module's ``annotations`` import would turn the types into texts.
    code = compile(source, file, "exec", dont_inherit=True)
    exec(code, space)  # the source is safe: it holds only quoted texts and identifiers
    function: Function = space[_identifier(tool.name)]
    return function


def _identifier(name: str) -> str:
    """Return a valid Python identifier similar to a tool's or a parameter's name."""
    identifier = re.sub(r"\W", "_", name)
    return (
        f"{identifier}_"
        if keyword.iskeyword(identifier) or not identifier.isidentifier()
        else identifier
    )
