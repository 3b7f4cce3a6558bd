"""Loader of NL2SH-ALFA (Westenfelder et al. 2025): 300 Bash tasks in five file systems.

NL2SH-ALFA is a corrected successor of NL2Bash, with two golds for each task. The data come from the
installed package ``icalfa``, or from a checkout of westenfelder/InterCode-ALFA. Only the file
`TYPES` is bundled, which InterCode's authors wrote: it has the type of each answer
(`intercode.rewards.answer_types`).

The authors of NL2SH-ALFA use containers of Ubuntu 24.04 and, for the fifth file system, of Alpine.
InterCode replaces both by the image ``nl2bash``: Debian 11, with GNU tools and Bash instead of
BusyBox. As in the authors' containers, the root of a file system contains the script that built it,
because tasks ask about the script. Unlike there, the environment variable ``FILES`` is not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import find_installed, home, locate, read_rows, read_tasks
from intercode.datasets.nl2bash import BASE_IMAGE
from intercode.errors import TaskError
from intercode.task import CANNOT, Dataset, Task

TYPES = Path(__file__).with_name("nl2sh_alfa_answers.jsonl")
"""The file with the types of answers. Each line is about a task, which ``suite`` and ``row``
identify. The line has the type of the answer, or the reason why the task cannot be scored.
``wrong`` lists the numbers (1 or 2) of golds that do not solve the query."""

_NAME = "nl2sh-alfa"
_PACKAGE = "icalfa"
_REPOSITORY = "https://github.com/westenfelder/InterCode-ALFA"
_SUITES = range(1, 6)
_FILES = tuple(f"{kind}_{n}.{end}" for n in _SUITES for kind, end in (
    ("datasets/nl2bash_fs", "json"), ("docker/setup_nl2b_fs", "sh"),
))  # fmt: skip
_DIFFICULTIES = ("easy", "medium", "hard")


@cached_loader
def load(root: str | Path | None = None, every_gold: bool = False) -> Dataset:
    """Load all tasks. The task in row 7 of the second file system has the id ``fs2-7``.

    Args:
        root: A folder that contains the package or a checkout, at most three levels deep. None: the
            folder that ``intercode datasets fetch nl2sh-alfa`` has written, or else the installed
            package.
        every_gold: Whether each task gets both golds, including golds that do not solve the query
            in the file system of the task.

    Returns:
        The dataset.

    Raises:
        TaskError: The data are absent, malformed or of another version.
    """
    if root is None and not track_file(home(_NAME)).is_dir():
        # The package is not imported, because its import needs Docker and a key of a model.
        root = find_installed(_PACKAGE)
        if root is None:
            raise TaskError(
                f"dataset {_NAME!r} is not there: pip install --no-deps {_PACKAGE}; or clone "
                f"{_REPOSITORY}, and give the folder as 'root', or to: intercode datasets fetch "
                f"{_NAME} --from FOLDER"
            )
    layouts = [[f"{folder}{file}" for file in _FILES] for folder in ("assets/", "")]
    dataset_folder, layout = locate(root, _NAME, layouts)
    assets = dataset_folder / "assets" if layout == 0 else dataset_folder
    tasks = [task for suite in _SUITES for task in _suite(assets, suite, every_gold)]
    return Dataset(tasks, _NAME, str(assets))


def _suite(assets: Path, suite: int, every_gold: bool) -> list[Task]:
    script = (assets / "docker" / f"setup_nl2b_fs_{suite}.sh").resolve()
    files = {f"/{script.name}": track_file(script).read_text(encoding="utf-8")}

    def convert(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        answer = _answer(suite, index)
        wrong_numbers = () if every_gold else answer.get("wrong", ())
        golds = enumerate((row["gold"], row["gold2"]), start=1)
        return {
            "task_id": f"fs{suite}-{index}",
            "query": row["query"],
            "gold": [gold for gold_number, gold in golds if gold_number not in wrong_numbers],
            "image": f"{BASE_IMAGE}+{script}",
            "files": files,
            "tags": [_DIFFICULTIES[int(row["difficulty"])], f"fs{suite}"],
            **{key: answer[key] for key in ("answer", "may_change", CANNOT) if key in answer},
        }

    return read_tasks(assets / "datasets" / f"nl2bash_fs_{suite}.json", convert)


def _answer(suite: int, row: int) -> Mapping[str, Any]:
    answer = _answers().get((suite, row))
    if answer is None:
        raise TaskError(f"the type of its answer is not known: is it another version of {_NAME}?")
    return answer


@cache
def _answers() -> Mapping[tuple[int, int], Mapping[str, Any]]:
    return {(row["suite"], row["row"]): row for _, row in read_rows(TYPES)}
