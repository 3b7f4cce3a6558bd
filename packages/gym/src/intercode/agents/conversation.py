"""The conversation of one episode with a model: prompts, replies, and the actions in replies.

A `Conversation` renders the blocks of a `StrategyPrompts` with the facts of a `PromptContext`. The
conversation's `Dialogue` keeps the messages within the model's context length.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.agents.examples import ExampleStep, WorkedExample
from intercode.agents.parser import find_code, strip_thoughts
from intercode.envs.tools import sendable
from intercode.envs.traits import Traits, resolve_traits
from intercode.episode import NoAction, Turn
from intercode.errors import ContextLengthError, UsageError
from intercode.failure_modes import is_repeat, shows_all_columns, shows_schema
from intercode.models.base import Message, Model, Reply, Role, Settings, Tool
from intercode.models.recording_model import RecordingModel

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from intercode.task import Task


NO_CODE = "no {language} code in your reply: give it in one block fenced by ```{language} and ```"
CUT_OFF = "your reply was cut off before its code was complete: be shorter"
MAX_RECAP_ACTIONS = 10
"""The maximum number of actions that a recap lists, unless the dialogue has a limit of messages."""
LEFT_OUT = "\n[… {} characters are left out here …]\n"


@dataclass(frozen=True, slots=True)
class ObservationClipper:
    """An excerpt function for observations in prompts.

    Attributes:
        limit: The maximum number of characters, without the notice of the omission.
        tail: Whether the excerpt consists of head and tail, with the number of omitted characters
            between both. If False, the excerpt is the head only.
    """

    limit: int = 10_000
    tail: bool = True

    def __call__(self, text: str) -> str:
        """Return the text, or its excerpt if the text exceeds the limit."""
        if len(text) <= self.limit:
            return text
        if not self.tail:
            return text[: self.limit]
        head = self.limit // 2
        omitted_count = len(text) - self.limit
        return (
            text[:head] + LEFT_OUT.format(omitted_count) + text[len(text) - (self.limit - head) :]
        )


def fence_action(action: str, language: str) -> str:
    """Format an action as a fenced block, as in a model's reply; empty for an empty action."""
    if not action:
        return ""
    max_backticks = max(map(len, re.findall("`+", action)), default=0)
    fence = "`" * max(3, max_backticks + 1)
    return sendable(f"{fence}{language}\n{action}\n{fence}")


def find_action(text: str, language: str, *, cut_off: bool = False) -> str:
    """Find the action in a model's reply; return a `NoAction` if the reply has none.

    Args:
        text: The reply, or a part of the reply.
        language: The language of actions.
        cut_off: Whether the reply hit the token limit.
    """
    code = find_code(text, language, cut_off=cut_off)
    if code is None:
        return NoAction(CUT_OFF if cut_off else NO_CODE.format(language=language))
    return code


@dataclass(frozen=True, slots=True)
class Conversation:
    """A strategy's interface to the model: send prompts, request replies, record facts."""

    dialogue: Dialogue
    prompt: StrategyPrompts
    scene: PromptContext
    transcript: RecordingModel
    clip: ObservationClipper = ObservationClipper()
    sees_reward: bool = False
    recaps: bool = False
    """Whether recaps are used: see `intercode.agents.language.StrategyOptions.recap`."""

    def branch(self, seed: int | None) -> Conversation:
        """Return a copy that continues the conversation independently.

        Args:
            seed: The seed of the copy's replies; None: unchanged.
        """
        dialogue = self.dialogue
        settings = dialogue.settings if seed is None else replace(dialogue.settings, seed=seed)
        return replace(
            self, dialogue=replace(dialogue, messages=[*dialogue.messages], settings=settings)
        )

    def begin(self, write: Callable[[ExampleStep], Reply] | None = None, **values: Any) -> None:
        """Add the system prompt, the worked examples and the task to the dialogue.

        Args:
            write: Formats a step of a worked example as a reply of the model. The prompt context's
                worked examples precede the task, each as a dialogue. None: no examples.
            **values: Further values for the templates.
        """
        system_texts = [self._text("system", **values), self.scene.skills]
        self.dialogue.add_message("system", "\n\n".join(filter(None, system_texts)))
        if write is not None:
            for example in self.scene.examples:
                self.dialogue.add_message(
                    "user", self._text("task", query=example.task, overview="")
                )
                for step in example.steps:
                    self._show(step, write(step), is_done=step is example.steps[-2])
        self.dialogue.add_message("user", self._text("task", **values))

    def _show(self, step: ExampleStep, reply: Reply, *, is_done: bool) -> None:
        self.dialogue.answer(reply)
        if step.observation is not None:
            turn = Turn(step.action, step.observation, ok=not step.failed, reward=float(is_done))
            self.add_observation(
                "observation", step.observation, **turn_values([turn]), overview=""
            )

    def add_observation(
        self, block: str, observation: str | None, call_id: str | None = None, **values: Any
    ) -> None:
        """Add a message from a block of the prompt, with an excerpt of an observation.

        Args:
            block: The name of the block.
            observation: The observation; None: the block shows none.
            call_id: The id of the tool call that the message answers; None: a user's message.
            **values: Further values for the template.
        """
        excerpt = None if observation is None else self.clip(observation.rstrip("\n"))
        text = self._text(block, observation=excerpt, **values)
        self.dialogue.add_message("user" if call_id is None else "tool", text, call_id)

    def ask_again(
        self, turns: Sequence[Turn], read: Callable[[str], str] | None = None
    ) -> str | None:
        """Replace the dialogue by the task and a recap of previous actions, and request an action.

        The recap omits the model's own replies, because a small model tends to repeat its replies.

        Args:
            turns: All turns so far.
            read: As in `ask`.

        Returns:
            The next action. None: the recap exceeds the context length, and the previous dialogue
            is restored.
        """
        turns_by_action = {
            turn.action.strip(): turn for turn in turns if not turn.info.get("invalid")
        }
        recent_turns = [*turns_by_action.values()][-(self.dialogue.limit or MAX_RECAP_ACTIONS) :]
        text = "\n\n".join(
            (
                self._text("task"),
                self._text(
                    "recap",
                    shown=[self._recap_turn(turn) for turn in recent_turns if turn.ok],
                    failures=[self._recap_turn(turn) for turn in recent_turns if not turn.ok],
                ),
            )
        )
        last_call = self.transcript.last_call
        previous_messages = self.dialogue.begin_again(text)
        try:
            action = self.ask(read)
        except ContextLengthError:  # the caller then uses the action of the previous reply
            self.dialogue.messages = previous_messages
            return None
        last_call["discarded"] = True
        return action

    def _recap_turn(self, turn: Turn) -> dict[str, str]:
        code = fence_action(turn.action.strip(), self.scene.language)
        return {"code": code, "observation": self.clip(turn.observation.rstrip("\n"))}

    def ask(self, read: Callable[[str], str] | None = None) -> str:
        """Request a reply, and return the reply's action; a `NoAction` if the reply has no action.

        Args:
            read: Returns the part of the reply that holds the action; None: the whole reply.
        """
        reply = self.reply()
        text = reply.text if read is None else read(strip_thoughts(reply.text))
        return find_action(text, self.scene.language, cut_off=reply.finish == "length")

    def reply(self) -> Reply:
        """Request the model's next reply."""
        return self.dialogue.ask()

    def note(self, **facts: Any) -> None:
        """Add facts about the last reply to the record."""
        self.transcript.note(**facts)

    def _text(self, block: str, **values: Any) -> str:
        defaults = {**self.scene.values(), "show_reward": self.sees_reward}
        return self.prompt.render(block, **{**defaults, **values})


@dataclass(frozen=True, slots=True)
class PromptContext:
    """The facts of an episode that prompts can contain."""

    env: str
    """The environment's short name."""
    traits: Traits
    setting: str
    query: str
    max_turns: int
    schema: str = ""
    """The tables and columns of an SQL task, if prompts show them (the "handicap" of 2023)."""
    skills: str = ""
    """The text about skills, at the end of the system prompt."""
    overview: str = ""
    """The overview of files or tables, if prompts show it (``--context schema``)."""
    examples: tuple[WorkedExample, ...] = ()
    """The worked examples, if the strategy shows any."""
    seed: int | None = None
    """The episode's seed."""

    @classmethod
    def from_env(
        cls, env: object, task: Task, *, setting: str = "", schema: bool = False, skills: str = ""
    ) -> PromptContext:
        """Collect the facts of an episode for prompts.

        Args:
            env: The environment; None: no environment, with the traits of Bash.
            task: The task, as the agent may see it.
            setting: A name that replaces the environment's setting.
            schema: Whether prompts show the database's schema.
            skills: The prompt's text about skills.

        Raises:
            UsageError: `schema` is true, and the task has no schema.
        """
        traits = resolve_traits(env)
        return cls(
            env=str(getattr(env, "name", "")),
            traits=traits,
            setting=setting or traits.setting or traits.language,
            query=task.query,
            max_turns=int(getattr(env, "max_turns", 10)),
            schema=describe_tables(task) if schema else "",
            skills=skills,
            seed=None if env is None else env.episode.seed,  # type: ignore[attr-defined]
        )

    @property
    def language(self) -> str:
        """The language of actions, such as ``bash``."""
        return self.traits.language

    def values(self) -> dict[str, Any]:
        """Return the values for a template, by name."""
        names = ("env", "language", "setting", "query", "max_turns", "schema", "overview")
        return {
            **{name: getattr(self, name) for name in names},
            "answer": self.traits.answer,
            "hint": self.traits.hint,
            "briefing": self.traits.briefing.replace("{setting}", self.setting),
        }


def find_setting(env: object) -> str:
    """Return the name of an environment's setting; empty if the environment has none."""
    setting = getattr(env, "setting", None)
    return str(setting()) if callable(setting) else ""


def read_overview(env: object) -> str:
    """Return an overview of the files or tables of an episode's sandbox or database.

    Raises:
        UsageError: The environment has no action for an overview, or runs on another system.
    """
    overview = getattr(env, "overview", None)
    if not callable(overview):
        raise UsageError("without an environment, no commands list its contents")
    return str(overview())


def describe_tables(task: Task) -> str:
    """List a task's tables and columns, from the metadata of its dataset.

    Raises:
        UsageError: The metadata has no tables.
    """
    tables = task.metadata.get("db_tables")
    if not isinstance(tables, Mapping):
        raise UsageError(
            f"task {task.task_id!r} does not list the tables of its database "
            "(metadata.db_tables): omit --schema"
        )
    return "\n".join(
        f"- {name}: {', '.join(map(str, columns))}" for name, columns in tables.items()
    )


@dataclass
class Dialogue:
    """The messages of a conversation, and the choice of the messages that each request contains.

    Every request contains the messages before the first request, or before the last call of `keep`.
    Of the later messages, a request contains the last `limit`; None: all. If a request exceeds the
    model's context length, the dialogue halves their number for all following requests, repeatedly
    if necessary.
    """

    model: Model
    settings: Settings = field(default_factory=Settings)
    tools: Sequence[Tool] = ()
    limit: int | None = None
    messages: list[Message] = field(default_factory=list)
    _head: int | None = None

    def add_message(self, role: Role, content: str, call_id: str | None = None) -> None:
        """Add a message."""
        self.messages.append(Message(role, sendable(content), call_id=call_id))

    def begin_again(self, content: str) -> list[Message]:
        """Replace the task's message and all later messages by one message.

        Returns:
            The previous messages.
        """
        assert self._head is not None  # the dialogue has a reply, so `ask` has set the head
        previous_messages = self.messages
        self.messages = previous_messages[: self._head - 1]
        self.add_message("user", content)
        return previous_messages

    def answer(self, reply: Reply) -> None:
        """Add a reply of the model."""
        self.messages.append(Message("assistant", sendable(reply.text), reply.tool_calls))

    def keep(self) -> None:
        """Include all messages so far in every later request."""
        self._head = len(self.messages)

    def ask(self) -> Reply:
        """Request the model's next reply, and add it to the messages.

        Raises:
            ContextLengthError: Even the first messages with the last message are too long.
            ModelError: See `Model.complete`.
        """
        if self._head is None:
            self.keep()
        while True:
            sent_messages = self._select_messages()
            try:
                reply = self.model.complete(sent_messages, self.settings, self.tools)
                break
            except ContextLengthError:
                tail_length = len(self.messages) - (self._head or 0)
                length = tail_length if self.limit is None else min(tail_length, self.limit)
                if length <= 1:
                    raise
                self.limit = length // 2
        self.answer(reply)
        return reply

    def _select_messages(self) -> list[Message]:
        head, tail = self.messages[: self._head], self.messages[self._head :]
        if self.limit is not None:
            tail = tail[-self.limit :]
            # The models' APIs refuse a tool result whose tool call the request omits.
            while tail and tail[0].role == "tool":
                del tail[0]
        return [*head, *tail]


def turn_values(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return a template's values for the last turn."""
    last_turn = turns[-1]
    return {
        "reward": last_turn.reward,
        "failed": not last_turn.ok,
        "looked": shows_schema(last_turn),
        "seen": any(map(shows_all_columns, turns)),
        "repeats": any(is_repeat(turn, last_turn) for turn in turns[:-1]),
    }


FOLDER = Path(__file__).parent / "prompts"
VALUES = frozenset(
    (
        *("env", "language", "setting", "query", "schema", "overview", "max_turns"),
        *("observation", "reward", "show_reward", "max_steps", "step"),
        *("number", "steps", "answer", "briefing", "hint", "candidates", "finished"),
        *("repeats", "failed", "looked", "seen", "shown", "failures"),
    )
)
"""The names of all values that templates may use. Each block supports some of these values."""


class StrategyPrompts:
    """The prompt texts of one strategy.

    Args:
        name: The strategy's template in ``prompts/``, without its suffix.
        custom_path: A user's template, whose blocks replace the strategy's blocks of the same name.

    Raises:
        UsageError: The file cannot be read, is not a template, or has an unknown block.
    """

    def __init__(self, name: str, custom_path: Path | None = None) -> None:
        self._templates = [_environment().get_template(f"{name}.j2")]
        if custom_path is not None:
            self._templates.insert(0, _load(custom_path, self._templates[0]))
        self._custom_path = custom_path

    @cached_property
    def digest(self) -> str:
        """Digest of all prompt texts, for a run's record."""
        return _template_digest(self._custom_path)

    def render(self, block: str, **values: Any) -> str:
        """Render one block of the prompt.

        Raises:
            UsageError: The template uses an unknown value, or fails.
        """
        from jinja2 import TemplateError

        template = next(candidate for candidate in self._templates if block in candidate.blocks)
        try:
            return "".join(template.blocks[block](template.new_context(values))).strip()
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            source = template.filename or template.name
            raise UsageError(f"prompt {source}, block {block!r}: {error}") from error


def _load(path: Path, builtin_template: Template) -> Template:
    from jinja2 import TemplateError, meta

    try:
        text = path.read_text(encoding="utf-8")
        template = _environment().from_string(text)
        names = meta.find_undeclared_variables(_environment().parse(text)) - VALUES
    except (OSError, UnicodeError, TemplateError) as error:
        line = f", line {error.lineno}" if hasattr(error, "lineno") else ""
        raise UsageError(f"prompt {path}{line}: {error}") from error
    template.filename = str(path)
    block_names = ", ".join(builtin_template.blocks)
    if not template.blocks:
        raise UsageError(
            f"prompt {path}: the file has no block; the blocks of this agent: {block_names}"
        )
    if unknown := sorted(template.blocks.keys() - builtin_template.blocks.keys()):
        raise UsageError(f"prompt {path}: block {unknown[0]!r} is unknown; known: {block_names}")
    if names:
        raise UsageError(f"prompt {path}: there is no value {min(names)!r}")
    return template


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment  # a template in a prompt file may be untrusted

    return SandboxedEnvironment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # prompts are not HTML
    )


def _template_digest(custom_path: Path | None) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in [*sorted(FOLDER.glob("*.j2")), *([] if custom_path is None else [custom_path])]:
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
