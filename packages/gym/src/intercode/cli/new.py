"""Write a small working benchmark in a new folder, as a starting point for your own.

Examples:
  intercode new shop
  intercode new riddles --env ctf

The folder has three tasks, a Dockerfile or a database, a test, and a README with the next steps.
If the environment has no suitable reward, the folder also has a reward function.

exit code: 0 if the folder is written; 2 if the name is unusable, or the folder exists or cannot
be written.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from pathlib import Path

from intercode.cli.terminal import print_json
from intercode.errors import UsageError
from intercode.registry import DATASETS, ENVS
from intercode_sandbox.units import format_count

TEMPLATES = Path(__file__).parents[1] / "templates"
COMMON = "common"

FILE_DESCRIPTIONS = {
    "intercode.toml": "marks this folder as a benchmark, and has its options",
    "tasks.jsonl": "the tasks, one a line: query and reference solution (gold)",
    "Dockerfile": "the image: files and programs for the agent",
    ".dockerignore": "files that the Dockerfile must not copy, such as gold",
    "files": "the files that the Dockerfile copies",
    "database.sql": "the database of the tasks",
    "repository": "the project with the tasks' issues",
    "reward.py": "the reward function",
    "test_tasks.py": "a test of the tasks, for pytest",
}
"""Name of a file or folder in a template → its description for the new folder's README."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "name", metavar="NAME", help="name of the new folder, below the working directory"
    )
    parser.add_argument(
        "--env",
        default="bash",
        choices=kinds(),
        metavar="ENV",
        help=f"environment of the tasks: one of {', '.join(kinds())} (default: bash)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def kinds() -> list[str]:
    """Return the sorted names of the environments for which a benchmark template exists."""
    return sorted(path.name for path in TEMPLATES.iterdir() if path.name != COMMON)


def execute(args: argparse.Namespace) -> int:
    """Write the new benchmark's folder, print the next steps, and return the exit code 0.

    Raises:
        UsageError: The name is malformed or in use, or the folder cannot be written.
    """
    folder = Path(args.name)
    _check_name(folder)
    files = _write_folder(folder, args.env)
    if args.json:
        print_json({"folder": str(folder.absolute()), "env": args.env, "files": files})
        return 0
    print(f"{folder}: {format_count(len(files), 'file')}, see {folder / 'README.md'}")
    print(f"next:\n  cd {folder}\n  intercode validate .\n  intercode play .")
    return 0


def _check_name(folder: Path) -> None:
    """Refuse a name that is malformed or in use.

    Raises:
        UsageError: The name is malformed, registered already, or the path exists.
    """
    name = str(folder)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a benchmark's name: a letter, and then letters, digits, '-' and '_'"
        )
    if name in ENVS or name in DATASETS:
        raise UsageError(f"{name!r} is already the name of an environment or a dataset of ours")
    if folder.exists() or folder.is_symlink():
        raise UsageError(
            f"folder {folder.absolute()} already exists: choose another name, or remove it"
        )


def _write_folder(folder: Path, env: str) -> list[str]:
    """Copy the template of an environment to a new folder.

    The files are first written to a temporary folder, which is then renamed, so no incomplete
    folder can appear.

    Args:
        folder: The path of the new folder.
        env: The environment's name.

    Returns:
        The paths of the files, relative to the folder.

    Raises:
        UsageError: The folder cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            new_folder = Path(scratch) / folder.name
            # `mkdir` gives default permissions; the temporary folder itself is private (0700).
            new_folder.mkdir()
            for source in (COMMON, env):
                shutil.copytree(
                    TEMPLATES / source,
                    new_folder,
                    ignore=shutil.ignore_patterns("__pycache__"),
                    copy_function=shutil.copyfile,
                    dirs_exist_ok=True,
                )
            readme = new_folder / "README.md"
            text = readme.read_text(encoding="utf-8")
            files = "\n".join(
                f"- `{name}`: {description}"
                for name, description in FILE_DESCRIPTIONS.items()
                if (new_folder / name).exists()
            )
            for key, value in {"name": folder.name, "env": env, "files": files}.items():
                text = text.replace(f"{{{{{key}}}}}", value)
            readme.write_text(text, encoding="utf-8")
            new_folder.rename(folder)
    except OSError as error:
        raise UsageError(f"{folder.absolute()} cannot be written: {error.strerror}") from error
    file_paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in file_paths)
