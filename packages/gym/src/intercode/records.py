"""The record of a run: a folder with ``run.json`` and ``episodes.jsonl``.

``run.json`` (the manifest) holds the spec of the run and facts about it; ``episodes.jsonl`` holds
one line of JSON for each episode. `RunRecordWriter` writes a record. `read_manifest` and
`read_episodes` read a record, and `RunRecord` gives access to single episodes. `Outcome` is the
summary of an episode, from which statistics are computed.

`RunRecordWriter.append` returns when the episode's line is on the disk. A crash can leave an
incomplete last line, without a newline. For such a line, `append` has not returned, so no caller
relies on it. Readers omit the line, and the next writer removes it from the file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from intercode.dialogues import all_agent_talks, count_calls, judge_talks, sum_costs, sum_tokens
from intercode.episode import Episode, NoAction, Status, Turn
from intercode.errors import RecordError, RecordWriteError, RunLockedError
from intercode.failure_modes import failure_modes
from intercode.json_limits import load_record
from intercode.manifest import check_manifest
from intercode.outcomes import UNSCORED, OutcomeKind
from intercode.redaction import SecretRedactor
from intercode_sandbox.host_files import sync_folder, write_atomically

MANIFEST = "run.json"
EPISODES = "episodes.jsonl"
LEVELS = (
    *("introductory", "interview", "competition"),  # APPS
    *("simple", "moderate", "challenging"),  # BIRD
    *("easy", "medium", "hard", "extra"),  # Spider, and the bundled tasks
)
"""The tags that name a task's difficulty; for each benchmark in ascending order."""

_LARGEST_FILE = 64 << 20
"""The maximum size of a run's JSON file in bytes. A ``run.json`` of 100,000 tasks has ten million
bytes."""
_LONGEST_LINE = 1 << 30
"""The maximum length of an episode's line, or of an incomplete last line, in bytes. An untrusted
file may be sparse: a huge file that takes no space on the disk."""
_BEGINS = b"{\0"
"""The possible first bytes of an incomplete last line. A brace begins an episode's JSON. A zero
byte is possible because a power cut may leave zeros at the end of a file."""
Key = tuple[int, str, tuple[int, ...]]
"""The identity of an episode within a run: its epoch, its task id and the branch of its fork."""
T = TypeVar("T")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a run's ``run.json``.

    Raises:
        RecordError: The folder is not the folder of a run, or its ``run.json`` cannot be read.
    """
    path = folder / MANIFEST
    document = _json(path, f"{folder} is not the folder of a run: {path.name}")
    manifest = check_manifest(document, path)
    env = manifest["env"]
    if env.get("env") == "swe" and "protocol" in env:
        # Older records lack the option `history`, because the Git history was always full.
        env.setdefault("history", "full")
    return manifest


def run_folders(root_paths: Iterable[Path]) -> list[Path]:
    """Return the run folders that some paths denote.

    A path of a run's folder denotes that folder; another path denotes the run folders directly in
    it. A path without any run is returned unchanged.
    """
    folders: list[Path] = []
    for root_path in root_paths:
        subfolders = (
            []
            if (root_path / MANIFEST).is_file() or not root_path.is_dir()
            else root_path.iterdir()
        )
        folders += sorted(path for path in subfolders if (path / MANIFEST).is_file()) or [root_path]
    return folders


def open_record(path: Path) -> BinaryIO:
    """Open a file of a run's folder for reading, if it is a regular file.

    The folder may be untrusted. A symbolic link in it could expose another file of this host, and
    reading from a FIFO or a device may never end.

    Raises:
        RecordError: The file is a link, or no regular file.
        OSError: The file cannot be opened.
    """
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file without blocking, and return its descriptor."""
    try:
        # Without O_NONBLOCK, opening a FIFO would block until another process opens it, too.
        # Without O_NOCTTY, a terminal could become the controlling terminal of this process.
        safe_flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags | safe_flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RecordError(
                f"{path} is a symbolic link, which is refused in a run's record"
            ) from None
        if error.errno in (errno.ENXIO, errno.ENODEV):
            raise RecordError(f"{path} is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordError(f"{path} is not a regular file")
    return descriptor


def read_episodes(path: Path) -> Iterator[Episode]:
    """Yield every recorded attempt, in the order in which the attempts ended.

    An incomplete last line is omitted. An episode that ended with an infrastructure error is
    recorded, and a later session of the run attempts the episode again. The file then contains
    several attempts at the same episode; `last_attempts` yields only the last attempt.

    Args:
        path: A run's ``episodes.jsonl``.

    Raises:
        RecordError: The file cannot be read, or a complete line is not an episode; the message
            names file and line.
    """
    return (episode for _, episode in _read_with_offsets(path))


def last_attempts(folder: Path) -> Iterator[Episode]:
    """Yield the last recorded attempt at each episode of a run.

    The function reads the file twice, so memory holds one episode at a time. The first pass finds
    the offset of each last attempt, and the second pass yields these attempts.

    Raises:
        RecordError: The run cannot be read.
    """
    offsets: dict[Key, int] = {}
    for offset, episode in _read_with_offsets(folder / EPISODES):
        offsets[episode_key(episode)] = offset
    last_offsets = set(offsets.values())
    return (
        episode
        for offset, episode in _read_with_offsets(folder / EPISODES)
        if offset in last_offsets
    )


def read_latest(folder: Path, read_fact: Callable[[Episode], T]) -> dict[Key, T]:
    """Return a fact about each episode, taken from the last recorded attempt.

    Args:
        folder: The run's folder.
        read_fact: A function that returns the fact. Only facts stay in memory, since whole episodes
            may be large.

    Returns:
        Episode's key → fact, in the order in which the last attempts ended.
    """
    facts: dict[Key, T] = {}
    for episode in read_episodes(folder / EPISODES):
        key = episode_key(episode)
        facts.pop(key, None)
        facts[key] = read_fact(episode)
    return facts


def episode_key(episode: Episode) -> Key:
    """Return the identity of an episode within a run."""
    branch = () if episode.fork is None else episode.fork.branch
    return episode.epoch, episode.task_id, branch


class RunRecord:
    """Random access to the episodes of a run. Of several attempts at an episode, the last counts.

    Args:
        folder: The run's folder.

    Attributes:
        manifest: The content of ``run.json``.
        outcomes: The summary of each episode, in the order in which the episodes ended.

    Raises:
        RecordError: The run cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.outcomes: dict[Key, Outcome] = {}
        self._path = folder / EPISODES
        self._offsets: dict[Key, int] = {}
        for offset, episode in _read_with_offsets(self._path):
            key = episode_key(episode)
            self.outcomes.pop(key, None)
            self.outcomes[key] = Outcome.from_episode(episode)
            self._offsets[key] = offset

    def read(self, key: Key) -> Episode:
        """Read one episode by its key. The method may be called from any thread."""
        with open_record(self._path) as file:
            file.seek(self._offsets[key])
            return Episode.from_json(record_line(file))


def _read_with_offsets(path: Path) -> Iterator[tuple[int, Episode]]:
    """Yield the byte offset and the episode of each complete line in ``episodes.jsonl``."""
    try:
        size = _finished_size(path)
        with open_record(path) as file:
            line_number = 0
            while (offset := file.tell()) < size:
                line_number += 1
                try:
                    yield offset, Episode.from_json(record_line(file))
                except RecordError as error:
                    raise RecordError(f"{path}:{line_number}: {error}") from error
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def _finished_size(log_path: Path) -> int:
    """Return the size in bytes of the part of ``episodes.jsonl`` that ends with a complete line.

    Bytes after the last newline come from a write that a crash interrupted. They are an incomplete
    line, or zeros, which some file systems leave after a power cut.

    Raises:
        RecordError: The bytes after the last newline are neither an incomplete episode nor zeros,
            or are too many. The file is then no file of episodes.
    """
    size = 0
    with open_record(log_path) as file:
        end = file_size = file.seek(0, 2)
        while end > 0:
            if file_size - end > _LONGEST_LINE:
                raise RecordError(
                    f"{log_path}: its last line is longer than {_LONGEST_LINE:,} bytes"
                )
            start = max(0, end - 65536)
            file.seek(start)
            if (newline := file.read(end - start).rfind(b"\n")) >= 0:
                size = start + newline + 1
                break
            end = start
        file.seek(size)
        if (torn_line := file.read(20)) and torn_line[0] not in _BEGINS:
            raise RecordError(f"{log_path}: at byte {size}: not an episode: {torn_line!r}")
    return size


def record_line(file: BinaryIO) -> bytes:
    """Read the next line of an open ``episodes.jsonl``.

    Raises:
        RecordError: The line reaches the maximum length, `_LONGEST_LINE`.
    """
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE:
        raise RecordError(f"a line is longer than {_LONGEST_LINE:,} bytes")
    return line


def _json(path: Path, cannot: str, open_file: Callable[[Path], BinaryIO] = open_record) -> Any:
    try:
        with open_file(path) as file:
            if len(text := file.read(_LARGEST_FILE + 1)) > _LARGEST_FILE:
                raise RecordError(f"{path} is larger than {_LARGEST_FILE >> 20} MiB")
            return load_record(text)
    except OSError as error:
        raise RecordError(f"{cannot}: {error.strerror}") from error
    except RecordError:
        raise
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from error


class RunRecordWriter:
    """The writer of a run's folder, which locks the folder against other writers.

    Any thread may call `append`. Threads that append at the same time share one `fdatasync`: the
    thread that holds the commit lock writes the lines of all waiting threads.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder, or open the folder of a run that is resumed.

        An incomplete last line of ``episodes.jsonl`` is removed.

        Raises:
            RunLockedError: Another process, or another `RunRecordWriter`, is writing to the folder.
            RecordError: The folder exists and is not a run's folder.
            RecordWriteError: The folder cannot be written.
        """
        self.folder = folder
        self._path = folder / EPISODES
        self._queue_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._pending_lines: list[bytes] = []
        self._queued_count = 0
        self._durable = 0
        self._failure: OSError | None = None
        self._redactor = SecretRedactor()
        self._fd = -1
        try:
            self._open()
        except RecordError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise RecordWriteError(f"cannot write to {folder}: {error.strerror}") from error

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unknown_names = {path.name for path in self.folder.iterdir()} - {MANIFEST, EPISODES}
        if unknown_names and not self._path.exists():
            raise RecordError(f"{self.folder} is not empty and not the folder of a run")
        self._fd = _open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            # The lock must be taken before the file is read: another process may be writing a line.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunLockedError(
                f"another process is writing to the run {self.folder}; "
                "wait for it, or choose another folder (--out)"
            ) from None
        os.ftruncate(self._fd, _finished_size(self._path))
        sync_folder(self.folder)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace ``run.json`` atomically, with secrets redacted.

        Raises:
            RecordWriteError: The file could not be written.
        """
        path = self.folder / MANIFEST
        text = json.dumps(self._redactor.facts(manifest), indent=2)
        try:
            write_atomically(path, f"{text}\n", sync=True)
        except OSError as error:
            raise RecordWriteError(f"cannot write {path}: {error.strerror}") from error

    def append(self, *episodes: Episode) -> None:
        """Write finished episodes with secrets redacted, and return when they are on the disk.

        Raises:
            RecordWriteError: The file could not be written; later calls fail, too.
        """
        redacted_episodes = map(self._redactor.episode, episodes)
        lines = b"".join(episode.to_json().encode("ascii") + b"\n" for episode in redacted_episodes)
        with self._queue_lock:
            self._pending_lines.append(lines)
            self._queued_count += 1
            ticket = self._queued_count
        with self._commit_lock:
            if self._durable < ticket:
                self._commit()

    def _commit(self) -> None:
        """Write all pending lines, and wait until the disk has stored them.

        Raises:
            RecordWriteError: This write or an earlier write failed, or the file is closed.
        """
        if self._failure is not None:
            raise RecordWriteError(f"{self._path} could not be written: {self._failure.strerror}")
        if self._fd < 0:
            raise RecordWriteError(f"{self._path} was closed")
        with self._queue_lock:
            batch, self._pending_lines = b"".join(self._pending_lines), []
            upto = self._queued_count
        try:
            view = memoryview(batch)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError as error:
            # After a failure nothing more is written, so only the last line can be incomplete.
            self._failure = error
            raise RecordWriteError(f"cannot write {self._path}: {error.strerror}") from error
        self._durable = upto

    def close(self) -> None:
        """Close the file, which releases the lock on the folder.

        The method is idempotent, and may be called from any thread.
        """
        with self._commit_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> RunRecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class JudgeSummary:
    """The summary of a judge's verdict on an episode.

    A judge is a language model that compares the agent's output with the output of gold: see
    `intercode.rewards.judge`.
    """

    model: str
    asked: bool = False
    """Whether the judge compared outputs, and its verdict decided the reward."""
    same: bool = False
    """Whether the episode is solved because the judge found the outputs equivalent."""
    split: bool = False
    """Whether some votes of the judge contradicted each other. Each vote compares the outputs in
    both orders."""
    steered: bool = False
    """Whether the judge accepted a decoy in place of the output, so its verdict was rejected."""
    malformed: int = 0
    """The number of the judge's replies that contained no verdict."""
    calls: int = 0
    """The number of calls to the judge's model."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None

    @classmethod
    def from_episode(cls, episode: Episode) -> JudgeSummary | None:
        """Summarise the judge's verdict on an episode; None if no judge was called."""
        if not (talks := judge_talks(episode)):
            return None
        detail = {} if episode.score is None else episode.score.detail.get("judge", {})
        compared_golds = [gold for gold in detail.get("golds", ()) if "votes" in gold]
        vote_sets = [{*chain(*gold["votes"])} for gold in compared_golds]
        replies = chain(
            *(chain(*gold["votes"], gold.get("control", ())) for gold in compared_golds)
        )
        tokens = sum_tokens(talks)
        return cls(
            model=str(talks[0].get("name", "")),
            asked=bool(compared_golds),
            same=bool(detail.get("same")),
            split=any({"same", "different"} <= words for words in vote_sets),
            steered=any("control" in gold and not gold["same"] for gold in compared_golds),
            malformed=[*replies].count("malformed"),
            calls=count_calls(talks),
            tokens_in=None if tokens is None else tokens[0],
            tokens_out=None if tokens is None else tokens[1],
            cost=sum_costs(talks),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The summary of an episode for statistics. Memory can hold the summaries of a whole run."""

    task_id: str
    epoch: int
    status: Status
    reward: float | None
    success: bool
    turns: int
    seconds: float
    kind: OutcomeKind | None = None
    """The outcome kind (`intercode.outcomes`); None: the episode has not ended or has no score."""
    branch: tuple[int, ...] = ()
    """The branch of a fork (`intercode.episode.Fork.branch`), which distinguishes the forks of an
    episode; their task and epoch are the same."""
    error: str | None = None
    error_type: str | None = None
    tags: tuple[str, ...] = ()
    place: str = ""
    """The image or database of the episode. Confidence intervals treat episodes with the same
    image or database as one cluster."""
    solved_at: int | None = None
    """The number of turns until the task was solved; None: not solved."""
    invalid: int = 0
    """The number of turns whose action failed or could not be executed. The paper of 2023 calls
    such actions not "admissible"."""
    unexecuted: int = 0
    """The number of turns without an executed action, for instance after a reply without code."""
    action_seconds: float = 0.0
    """Wall time of the actions in seconds."""
    model_seconds: float = 0.0
    """Wall time of the model's replies in seconds. The sandbox and the reward take the rest of the
    episode's time."""
    calls: int = 0
    """The number of calls to the model, without replies from the cache."""
    tokens_in: int | None = None
    """The number of tokens in the prompts; None: not recorded."""
    tokens_out: int | None = None
    cost: float | None = None
    """The cost of the model in US dollars; None: not recorded, or the price is unknown."""
    restarts: int = 0
    """The number of times that the episode was repeated because the sandbox was lost without the
    agent's fault."""
    submissions: int = 0
    """The number of submissions over all forks of the episode; 0: no other fork submitted."""
    permuted: bool = False
    """Whether an SQL answer equals gold's only after its columns were reordered. The order of
    columns is free."""
    explained: bool = False
    """Whether an SQL answer has an additional column that explains the others."""
    hard_coded: bool = False
    """Whether an SQL answer reads no table although gold reads one."""
    modes: tuple[str, ...] = ()
    """The names of the failure modes: see `intercode.failure_modes`."""
    judged: JudgeSummary | None = None
    """The summary of the judge's verdict. The other fields omit the judge's calls and cost."""

    @classmethod
    def from_episode(cls, episode: Episode) -> Outcome:
        """Summarise a recorded episode."""
        metadata, turns = episode.metadata, episode.turns
        detail = {} if episode.score is None else episode.score.detail
        talks, tags = all_agent_talks(episode), metadata.get("tags")
        tokens = sum_tokens(talks)
        calls = [*chain.from_iterable(talk.get("calls", ()) for talk in talks)]
        return cls(
            task_id=episode.task_id,
            epoch=episode.epoch,
            status=episode.status,
            reward=episode.reward,
            success=episode.success,
            turns=len(turns),
            seconds=episode.seconds,
            kind=episode.outcome,
            branch=episode_key(episode)[2],
            error=episode.error,
            error_type=metadata.get("error_type"),
            tags=tuple(map(str, tags)) if isinstance(tags, list | tuple) else (),
            place=str(metadata.get("image", "")),
            solved_at=_find_solved_turn(episode),
            invalid=sum(not turn.ok for turn in turns),
            unexecuted=sum(turn.info.get("executed") is False for turn in turns),
            action_seconds=math.fsum(turn.seconds for turn in turns),
            model_seconds=math.fsum(call.get("seconds", 0.0) for call in calls),
            calls=count_calls(talks),
            tokens_in=None if tokens is None else tokens[0],
            tokens_out=None if tokens is None else tokens[1],
            cost=sum_costs(talks),
            restarts=attempts - 1 if isinstance(attempts := metadata.get("attempts"), int) else 0,
            submissions=submission_count
            if isinstance(submission_count := metadata.get("submissions"), int)
            else 0,
            permuted="columns" in detail,
            explained="explained" in detail,
            hard_coded="hard_coded" in detail,
            modes=failure_modes(episode, calls),
            judged=JudgeSummary.from_episode(episode),
        )

    @property
    def failed(self) -> bool:
        """Whether the episode has no reward.

        Statistics count such an episode as an error, never as a reward of 0.
        """
        return self.kind is None or self.kind in UNSCORED

    @property
    def level(self) -> str | None:
        """The difficulty of the task, if one of its tags names a level."""
        return next((tag for tag in self.tags if tag in LEVELS), None)


def _find_solved_turn(episode: Episode) -> int | None:
    if not episode.success:
        return None
    for turn_number, turn in enumerate(episode.turns, 1):
        if turn.reward == 1.0:
            return turn_number
    return len(episode.turns)


def turn_action(turn: Turn) -> str:
    """Return a turn's action as the agent passed it to the environment.

    The action of a reply without an action is a `NoAction` with its note.
    """
    if turn.info.get("invalid"):
        return NoAction(turn.observation.removeprefix("[").removesuffix("]"))
    return turn.action


def ending_action(episode: Episode) -> str:
    """Return the action that ended an episode: ``submit``, ``submit ANSWER`` or ``skip``.

    The turns of a recorded episode lack this last action, so replays append it. For an episode
    that ended otherwise, such as at the turn limit, the result is ``submit``.
    """
    if episode.status == "skipped":
        return "skip"
    return "submit" if episode.answer is None else f"submit {episode.answer}"


def load_actions(path: Path) -> dict[str, list[str]]:
    """Read the recorded actions of each task, in any format that the agent `replay` accepts.

    Args:
        path: A run's folder, the ``episodes.jsonl`` of a run, or a JSON file. The JSON file holds
            an object task id → list of actions, or results of the 2023 release. In a run with
            several epochs, the first epoch counts.

    Returns:
        Task id → actions.

    Raises:
        RecordError: The file cannot be read or has none of these shapes.
    """
    if path.is_dir():
        return _recorded_actions(path / EPISODES)
    if path.suffix == ".jsonl":
        # The caller may name a symbolic link, which `open_record` would refuse.
        return _recorded_actions(path.resolve())
    document = _json(path, f"cannot read {path}", lambda path: path.open("rb"))
    if isinstance(document, dict) and isinstance(document.get("logs"), dict):
        document = document["logs"]
    if not isinstance(document, dict) or not document:
        raise RecordError(f"{path}: expected a JSON object, task id → actions")
    return {
        task: _listed_actions(value, f"{path}, task {task}") for task, value in document.items()
    }


def _recorded_actions(path: Path) -> dict[str, list[str]]:
    actions: dict[str, list[str]] = {}
    for episode in read_episodes(path):
        if episode.epoch or episode.status == "error":
            continue
        actions[episode.task_id] = [turn.action for turn in episode.turns]
        if episode.status == "skipped" or episode.answer is not None:
            actions[episode.task_id].append(ending_action(episode))
    if not actions:
        raise RecordError(f"{path} holds no finished episode")
    return actions


def _listed_actions(value: Any, location: str) -> list[str]:
    if isinstance(value, dict):  # the format of 2023
        history = value.get("turn_history")
        # The 2023 files of human participants have the key "trajectory" instead.
        if history is None and isinstance(turns := value.get("trajectory"), list):
            actions = [turn.get("action") if isinstance(turn, dict) else turn for turn in turns]
            history = {"actions": actions}
        if not isinstance(history, dict):
            raise RecordError(f"{location}: neither a list of actions nor a recorded episode")
        value = [_unwrap_action(action) for action in history.get("actions", [])]
        # In the files of 2023, "blocked" is not an action but a mark after the last turn, and None
        # stands for a reply without code.
        value = [action for action in value if action not in (None, "", "blocked")]
    if not isinstance(value, list) or not all(isinstance(action, str) for action in value):
        raise RecordError(f"{location}: actions must be a list of strings")
    return value


def _unwrap_action(action: Any) -> Any:
    """Return the code within ``execute[…]``, the form of ReAct actions; other actions unchanged."""
    if isinstance(action, str) and action.startswith("execute[") and action.endswith("]"):
        return action[len("execute[") : -1]
    return action


# Comparison


class ValueDifference(NamedTuple):
    """A named value that differs between two specs or records. None stands for a missing value."""

    what: str
    before: Any
    now: Any


def diff(baseline: Mapping[str, Any], current: Mapping[str, Any]) -> list[ValueDifference]:
    """List the values that differ between two flat objects, sorted by name."""
    names = sorted(baseline.keys() | current.keys())
    pairs = ((name, baseline.get(name), current.get(name)) for name in names)
    return [ValueDifference(*pair) for pair in pairs if pair[1] != pair[2]]
