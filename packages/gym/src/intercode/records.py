"""The record of a run: a folder with ``run.json`` (the spec and facts) and ``episodes.jsonl``.

`RecordWriter` writes a record; `read_manifest` and `read_episodes` read it. `Record` gives access
to single episodes. `Outcome` is the summary of an episode, from which statistics are computed.

The writer appends one line per episode, and confirms an episode once it is on the disk. A line
without its newline was never confirmed: readers omit it, and the next writer truncates it.
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
from intercode.redaction import Redactor
from intercode_sandbox.files import sync_folder, write_atomically

MANIFEST = "run.json"
EPISODES = "episodes.jsonl"
LEVELS = (
    *("introductory", "interview", "competition"),  # APPS
    *("simple", "moderate", "challenging"),  # BIRD
    *("easy", "medium", "hard", "extra"),  # Spider, and the bundled tasks
)
"""The tags of difficulty, in each benchmark in ascending order."""

_LARGEST_FILE = 64 << 20
"""The maximum bytes of a run's JSON file. A ``run.json`` of 100,000 tasks has ten million."""
_LONGEST_LINE = 1 << 30
"""The maximum bytes of an episode's line, or of a torn end. An untrusted file may be sparse, and
practically endless."""
_BEGINS = b"{\0"
"""The first byte of an episode's line, and of the zeros that a power cut may leave."""
Key = tuple[int, str, tuple[int, ...]]
"""An episode's identity within a run: epoch, task id and branch."""
T = TypeVar("T")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a run's ``run.json``.

    Raises:
        RecordError: The folder is not a run's, or its ``run.json`` cannot be read.
    """
    path = folder / MANIFEST
    document = _json(path, f"{folder} is not the folder of a run: {path.name}")
    manifest = check_manifest(document, path)
    env = manifest["env"]
    if env.get("env") == "swe" and "protocol" in env:
        env.setdefault("history", "full")  # older records: the history was always full
    return manifest


def run_folders(root_paths: Iterable[Path]) -> list[Path]:
    """Return the folders of runs: each path that is a run, else the runs directly below it.

    A path without any run is returned unchanged.
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
    """Open a file of a run's folder for reading: a regular file, and no link.

    The folder may be untrusted: a link could expose another file of this host, and a FIFO or a
    device may never end.

    Raises:
        RecordError: The file is a link, or no regular file.
        OSError: The file cannot be opened.
    """
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def _open_regular(path: Path, flags: int) -> int:
    """Open a regular file without blocking, and return its descriptor."""
    try:
        # A FIFO would block for its other end, and a terminal could become the controlling one.
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
    """Yield every recorded attempt, in the order of their ends; a torn end is omitted.

    An episode that ended with an infrastructure error is recorded, and again after each new attempt
    in a later session: see `last_attempts`.

    Args:
        path: A run's ``episodes.jsonl``.

    Raises:
        RecordError: The file cannot be read, or a complete line is not an episode; the message
            names file and line.
    """
    return (episode for _, episode in _read_with_offsets(path))


def last_attempts(folder: Path) -> Iterator[Episode]:
    """Yield the last recorded attempt at each episode of a run.

    The function reads the file twice, to keep memory constant.

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
    """Return a fact of the last recorded attempt at each episode, in the order of their ends.

    Args:
        folder: The run's folder.
        read_fact: Returns the fact to retain of an episode; whole episodes may be large.
    """
    facts: dict[Key, T] = {}
    for episode in read_episodes(folder / EPISODES):
        key = episode_key(episode)
        facts.pop(key, None)
        facts[key] = read_fact(episode)
    return facts


def episode_key(episode: Episode) -> Key:
    """Return an episode's identity within a run."""
    branch = () if episode.fork is None else episode.fork.branch
    return episode.epoch, episode.task_id, branch


class Record:
    """Random access to the episodes of a run; of repeated episodes, to the last attempt.

    Args:
        folder: The run's folder.

    Attributes:
        manifest: The content of ``run.json``.
        outcomes: The outcome of each episode, in the order of their ends.

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
        """Read one episode. Safe from any thread."""
        with open_record(self._path) as file:
            file.seek(self._offsets[key])
            return Episode.from_json(record_line(file))


def _read_with_offsets(path: Path) -> Iterator[tuple[int, Episode]]:
    """Yield each complete line's offset in the file, and its episode."""
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
    """Return the size of a log up to the end of its last complete line, in bytes.

    The bytes after it are the torn end of an unconfirmed write: a line without its newline, or the
    zeros that some file systems leave after a power cut.

    Raises:
        RecordError: The bytes after it are neither, or too many: the file does not hold episodes.
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
    """Read a line of an open record.

    Raises:
        RecordError: The line reaches the maximum length.
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


class RecordWriter:
    """The exclusive writer of a run's folder. `append` is safe from any thread.

    Workers that finish at the same time share one `fdatasync`: the thread that holds the lock
    commits for all waiting threads.
    """

    def __init__(self, folder: Path) -> None:
        """Create the folder, or open it to resume its run; truncate a torn end.

        Raises:
            RunLockedError: Another process, or another `RecordWriter`, is writing to the folder.
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
        self._redactor = Redactor()
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
            # The lock comes before any read: another process may be in the middle of a line.
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
        """Record finished episodes with secrets redacted, and return when they are on the disk.

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
        """Write all pending lines, and wait for the disk once."""
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
            # No further writes: a torn line can only be the last.
            self._failure = error
            raise RecordWriteError(f"cannot write {self._path}: {error.strerror}") from error
        self._durable = upto

    def close(self) -> None:
        """Release the lock on the folder. Idempotent, safe from any thread."""
        with self._commit_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class JudgeSummary:
    """The summary of a judge's verdict on an episode: see `intercode.rewards.judge`."""

    model: str
    asked: bool = False
    """Whether the final verdict is the judge's; otherwise the calls did not decide the reward."""
    same: bool = False
    """Whether the success follows from the judge's verdict."""
    split: bool = False
    """Whether the votes, or the two orders of a vote, disagreed."""
    steered: bool = False
    """Whether the judge accepted a decoy as the output, so its verdict was rejected."""
    malformed: int = 0
    """The number of replies that were no verdicts."""
    calls: int = 0
    """Calls to the judge's model."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost: float | None = None

    @classmethod
    def from_episode(cls, episode: Episode) -> JudgeSummary | None:
        """Return the judge's summary of an episode; None without a judge."""
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
    """The summary of an episode for statistics, small enough to hold those of all episodes."""

    task_id: str
    epoch: int
    status: Status
    reward: float | None
    success: bool
    turns: int
    seconds: float
    kind: OutcomeKind | None = None
    """The outcome kind (`intercode.outcomes`); None: the episode has no end or no score."""
    branch: tuple[int, ...] = ()
    """The branch of a fork; sibling forks share task and epoch."""
    error: str | None = None
    error_type: str | None = None
    tags: tuple[str, ...] = ()
    place: str = ""
    """The image or database of the episode, which is the cluster of confidence intervals."""
    solved_at: int | None = None
    """The number of turns until the task was solved; None: not solved."""
    invalid: int = 0
    """Turns whose action could not be executed, or failed: not "admissible" in 2023's terms."""
    unexecuted: int = 0
    """Invalid turns whose action was not executed, such as a reply without code."""
    action_seconds: float = 0.0
    """Wall time of the actions."""
    model_seconds: float = 0.0
    """Wall time of the model's replies. The sandbox and the reward take the remaining time."""
    calls: int = 0
    """Calls to the model, without replies from the cache."""
    tokens_in: int | None = None
    """Tokens of the prompts; None: not recorded."""
    tokens_out: int | None = None
    cost: float | None = None
    """US dollars; None: not recorded, or the price is unknown."""
    restarts: int = 0
    """The number of restarts after the sandbox was lost through no fault of the agent."""
    submissions: int = 0
    """Submissions over all forks of the episode, if more than one."""
    permuted: bool = False
    """For SQL: whether the answer is right except for the order of its columns, which is free."""
    explained: bool = False
    """For SQL: whether the answer has a further, explanatory column."""
    hard_coded: bool = False
    """For SQL: whether the answer reads no table although gold does."""
    modes: tuple[str, ...] = ()
    """The names of the failure modes: see `intercode.failure_modes`."""
    judged: JudgeSummary | None = None
    """The judge's summary, with its cost, which no other field includes."""

    @classmethod
    def from_episode(cls, episode: Episode) -> Outcome:
        """Compute the outcome of an episode."""
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
        """Whether the episode has no result. Statistics count it apart, never as a reward of 0."""
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
    """Return a turn's action as the environment received it, including an empty action."""
    if turn.info.get("invalid"):
        return NoAction(turn.observation.removeprefix("[").removesuffix("]"))
    return turn.action


def ending_action(episode: Episode) -> str:
    """Return the action that submitted or skipped an episode, which is not among its turns."""
    if episode.status == "skipped":
        return "skip"
    return "submit" if episode.answer is None else f"submit {episode.answer}"


def load_actions(path: Path) -> dict[str, list[str]]:
    """Read the recorded actions of each task, in any format that the agent `replay` accepts.

    Args:
        path: A run's folder, its ``episodes.jsonl`` (of several epochs the first counts), or a
            JSON file: an object task id → list of actions, or results of 2023.

    Returns:
        Task id → actions.

    Raises:
        RecordError: The file cannot be read or has none of these shapes.
    """
    if path.is_dir():
        return _recorded_actions(path / EPISODES)
    if path.suffix == ".jsonl":
        return _recorded_actions(path.resolve())  # the caller may name a link
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
        if history is None and isinstance(turns := value.get("trajectory"), list):  # human runs
            actions = [turn.get("action") if isinstance(turn, dict) else turn for turn in turns]
            history = {"actions": actions}
        if not isinstance(history, dict):
            raise RecordError(f"{location}: neither a list of actions nor a recorded episode")
        value = [_unwrap_action(action) for action in history.get("actions", [])]
        # In the files of 2023 "blocked" follows the last turn; None marks a reply without code.
        value = [action for action in value if action not in (None, "", "blocked")]
    if not isinstance(value, list) or not all(isinstance(action, str) for action in value):
        raise RecordError(f"{location}: actions must be a list of strings")
    return value


def _unwrap_action(action: Any) -> Any:
    """Strip ``execute[…]`` from a ReAct action."""
    if isinstance(action, str) and action.startswith("execute[") and action.endswith("]"):
        return action[len("execute[") : -1]
    return action


# Comparison


class ValueDifference(NamedTuple):
    """A value that differs between two specs or two records; None for a missing value."""

    what: str
    before: Any
    now: Any


def diff(baseline: Mapping[str, Any], current: Mapping[str, Any]) -> list[ValueDifference]:
    """List the differences between two flat objects, by name."""
    names = sorted(baseline.keys() | current.keys())
    pairs = ((name, baseline.get(name), current.get(name)) for name in names)
    return [ValueDifference(*pair) for pair in pairs if pair[1] != pair[2]]
