"""A repository at one commit, as a tarball that can be laid over an image.

It has that commit and nothing else; with `FULL`, also the commits before it, from which an answer
may be read: objects are fetched into a new repository, so that no other commit, tag, remote,
reflog, stash, note, hook or setting of the source can be in it. A repository that the image has at
the same place is hidden. Preparing it executes nothing of it (see `git`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from intercode_sandbox.errors import ImageError
from intercode_sandbox.files import cache_root, file_digest, locked
from intercode_sandbox.images.archive import pack, unpack, write_tarball
from intercode_sandbox.images.base import ARCHIVES, Image
from intercode_sandbox.images.cache import keep_tarball, take_tarball

log = logging.getLogger(__name__)

VERSION = "2"
NONE, FULL = HISTORIES = ("none", "full")
"""The history of a prepared repository: one commit, without parents; or all commits before it."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
_FULL = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NAME = re.compile(r"\w[\w./-]*")
_FILES = (*ARCHIVES, ".bundle", ".fi")
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tcheckStat = minimal
\ttrustctime = false
[user]
\tname = Agent
\temail = agent@example.invalid
"""
_SHA256_DIGITS = 64
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"
# Checked out files have the commit's time, and their inodes change from sandbox to sandbox: with
# these settings git knows that they are unchanged without reading all of them.


def is_url(source: str) -> bool:
    """Whether git is to fetch it from elsewhere."""
    return _URL.match(source) is not None


def prepare(source: str, commit: str | None, at: str, history: str = NONE) -> tuple[str, Path]:
    """Return the prepared repository's digest, the same for any source, and its tarball's path.

    Args:
        source: A folder (work tree or bare), a ``.bundle``, a ``.fi`` (``git fast-export``'s text),
            a folder of plain files, a tarball of a folder with or without ``.git``, or a URL.
        commit: The commit or tag that it is to be at; None for plain files, which become one.
        at: The absolute path in the image that it will have.
        history: One of `HISTORIES`.

    Raises:
        ImageError: There is no git, no such repository, or no such commit in it.
    """
    if commit is not None and not _NAME.fullmatch(commit):
        raise ImageError(f"{commit!r} is not a commit")
    home = cache_root() / "repositories"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".") as folder:
            return _prepare(home, Path(folder), source, commit, at, history)
    except OSError as error:
        raise ImageError(f"cannot prepare the repository {source}: {error}") from error


def _prepare(
    home: Path, scratch: Path, source: str, commit: str | None, at: str, history: str
) -> tuple[str, Path]:
    git = Git(scratch)
    path = Path(source)
    if path.is_dir() and not _is_repository(path):  # plain files
        if commit is not None:
            raise ImageError(f"{path} is not a git repository, and so has no commit {commit!r}")
        path = pack(path, "/files")
        source = str(path)
    if is_url(source):
        known = commit if commit and _FULL.fullmatch(commit) else None
    elif path.is_dir():
        source = str(_git_folder(path))
        commit = _resolve(git, source, commit, path)
        known = commit + (_shallow(git, source) if history == FULL else "")
    elif path.is_file() and path.name.endswith(_FILES):
        known = f"{file_digest(path)}:{commit}"
    else:
        known_files = ", ".join(_FILES)
        raise ImageError(
            f"there is no repository {path}: neither a folder nor one of {known_files}"
        )
    if known is None:  # a branch or tag of another machine's may have moved since
        known = commit = _fetch_from(git, scratch, source, commit, history)
        source = str(scratch / "source")
    parts = "\0".join([VERSION, history, at, known])
    key = hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
    place = home / f"{key}.tar"
    with locked(home / f"{key}.lock"):
        if not take_tarball(place):
            _build(git, scratch, source, commit, at, history, place)
    return key, place


def _build(
    git: Git, scratch: Path, source: str, commit: str | None, at: str, history: str, place: Path
) -> None:
    log.info("preparing the repository %s at %s", source, commit)
    new = scratch / "new"
    with _repository(git, scratch, source, commit, history) as (folder, found):
        git("init", "--quiet", "--template=", *_format(found or ""), new)
        if found is None:
            _commit_files(git, folder, new)
        else:
            git("-C", new, "fetch", "--quiet", "--no-tags", *_depth(history), "--update-shallow",
                "--update-head-ok", folder, f"+{found}:refs/heads/main")  # fmt: skip
            if history == NONE:
                _forget_parents(git, new, scratch)
            git("-C", new, "read-tree", "--reset", "-u", "refs/heads/main")
    seconds = int(git("-C", new, "show", "--no-patch", "--format=%ct", "HEAD"))
    _finish(git, new, seconds)
    with (scratch / "tar").open("wb") as file:
        write_tarball(file, new, at, keep_times=True, replaces=(".git",))
    keep_tarball(scratch / "tar", place)


def _format(name: str) -> list[str]:
    """Return what has `git init` make a repository in which an object may have this name."""
    return ["--object-format=sha256"] if len(name) == _SHA256_DIGITS else []


def _depth(history: str) -> list[str]:
    return ["--depth=1"] if history == NONE else []


_KEPT = (b"tree ", b"author ", b"committer ", b"encoding ")
"""The first words of a commit's lines that say nothing of others; its signature would not fit."""


def _forget_parents(git: Git, new: Path, scratch: Path) -> None:
    """Replace the commit by one without parents, else alike; no other object is left."""
    at = ("-C", new)
    head, _, message = git.raw(*at, "cat-file", "commit", "refs/heads/main").partition(b"\n\n")
    lines = [line for line in head.split(b"\n") if line.startswith(_KEPT)]
    (scratch / "commit").write_bytes(b"\n".join(lines) + b"\n\n" + message)
    name = git(*at, "hash-object", "-t", "commit", "-w", "--literally", scratch / "commit")
    git(*at, "update-ref", "refs/heads/main", name)
    (new / ".git" / "shallow").unlink(missing_ok=True)
    git(*at, "repack", "-a", "-d", "-n", "-q")
    git(*at, "prune", "--expire=now")


@contextmanager
def _repository(
    git: Git, scratch: Path, source: str, commit: str | None, history: str
) -> Iterator[tuple[Path, str | None]]:
    """A repository on this machine and the commit, or a folder of files and None."""
    if is_url(source):
        found = _fetch_from(git, scratch, source, commit, history)
        yield scratch / "source", found
        return
    path = Path(source)
    if path.is_dir() or path.name == ".git":  # which is a file, in a work tree of another's
        yield path, commit
        return
    folder = scratch / "source"
    if path.suffix == ".fi":
        git("init", "--quiet", "--bare", "--template=", folder)
        with path.open("rb") as text:
            git("--git-dir", folder, "fast-import", "--quiet", stdin=text)
    elif path.suffix == ".bundle":
        heads = git("bundle", "list-heads", path)
        git("init", "--quiet", "--bare", "--template=", *_format(heads.partition(" ")[0]), folder)
        git("--git-dir", folder, "fetch", "--quiet", path, "+refs/*:refs/*")
    else:
        folder = _unpacked(path, folder)
        if not _is_repository(folder):
            if commit is not None:
                raise ImageError(f"{path} has no .git, and so no commit {commit!r}")
            yield folder, None
            return
        folder = _git_folder(folder)
        _refuse_links(folder, path)
    yield folder, _resolve(git, str(folder), commit, path)


def _fetch_from(git: Git, scratch: Path, url: str, commit: str | None, history: str) -> str:
    """Fetch a commit from elsewhere into ``scratch/source``; its full name."""
    if commit is None:
        raise ImageError(f"which commit of {url}? Name it in 'base_commit'")
    folder = scratch / "source"
    if not folder.exists():
        known = commit
        if not _FULL.fullmatch(commit):
            known = git("ls-remote", "--", url).partition("\t")[0]
        git("init", "--quiet", "--bare", "--template=", *_format(known), folder)
        git("--git-dir", folder, "fetch", "--quiet", "--no-tags", *_depth(history), "--", url,
            f"+{commit}:refs/it")  # fmt: skip
    return git("--git-dir", folder, "rev-parse", "--verify", "refs/it^{commit}")


def _is_repository(folder: Path) -> bool:
    bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    return bare or (folder / ".git").exists()


def _git_folder(folder: Path) -> Path:
    inner = folder / ".git"
    return inner if inner.exists() else folder


def _resolve(git: Git, folder: str, commit: str | None, path: Path) -> str:
    if commit is None:
        raise ImageError(f"which commit of {path}? Name it in 'base_commit'")
    try:
        return git("--git-dir", folder, "rev-parse", "--verify", "--end-of-options",
                   f"{commit}^{{commit}}")  # fmt: skip
    except ImageError as error:
        raise ImageError(f"{path} has no commit {commit!r}: {error}") from None


def _shallow(git: Git, folder: str) -> str:
    """What tells a repository without its early history from a whole one; most are whole."""
    if git("--git-dir", folder, "rev-parse", "--is-shallow-repository") == "false":
        return ""
    return file_digest(Path(git("--git-dir", folder, "rev-parse", "--git-path", "shallow")))


def _unpacked(path: Path, folder: Path) -> Path:
    """Return a tarball's content; of the one folder in it, if it has only that."""
    folder.mkdir()
    with path.open("rb") as file:
        unpack(file, path, folder, Image(name=path.name, digest="", layers=()))
    entries = list(folder.iterdir())
    only = entries[0] if len(entries) == 1 else folder
    return only if only.is_dir() and not only.is_symlink() and only.name != ".git" else folder


def refuse_links(path: Path) -> None:
    """Refuse a repository of a stranger's that would have git read other files of this machine.

    Raises:
        ImageError: As named.
    """
    if path.is_dir() and _is_repository(path):
        _refuse_links(_git_folder(path), path)


def _refuse_links(folder: Path, path: Path) -> None:
    for name in ("commondir", "objects/info/alternates"):
        if os.path.lexists(folder / name):
            raise ImageError(f"refused the repository in {path}: its {name} leads out of it")
    if folder.is_symlink() or not folder.is_dir():
        raise ImageError(f"refused the repository in {path}: its .git is not a folder")
    for entry in folder.rglob("*"):
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            inner = entry.relative_to(folder)
            raise ImageError(f"refused the repository in {path}: {inner} in .git is not a file")


def _commit_files(git: Git, folder: Path, new: Path) -> None:
    for entry in folder.iterdir():
        shutil.move(entry, new)
    git("-C", new, "add", "--all", "--force")
    git("-C", new, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message=Begin")


def _finish(git: Git, new: Path, seconds: int) -> None:
    """Nothing but objects, one branch and the index; all files of the commit's time."""
    inner = new / ".git"
    for name in ("FETCH_HEAD", "ORIG_HEAD", "COMMIT_EDITMSG", "logs", "description"):
        path = inner / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    is_sha256 = git("-C", new, "rev-parse", "--show-object-format") == "sha256"
    config = _CONFIG.replace("version = 0", "version = 1") + _SHA256 if is_sha256 else _CONFIG
    (inner / "config").write_text(config, encoding="ascii")
    _set_times(new, seconds)
    # Refreshes the index; unlike update-index, it does not mind files that git takes for changed as
    # soon as they are checked out (by their line ends).
    git("-C", new, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    # As old as the files, the index would tell git to trust none of its times.
    _set_times(inner, seconds)
    os.utime(inner / "index", (seconds + 1, seconds + 1))


def _set_times(folder: Path, seconds: int) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            os.utime(Path(parent, name), (seconds, seconds), follow_symlinks=False)
        os.utime(parent, (seconds, seconds))


_SECONDS = 3600.0
_OWN_CONFIG = """\
[core]
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tfsmonitor = false
\tlogAllRefUpdates = false
\tautocrlf = false
\tcheckStat = minimal
\ttrustctime = false
[safe]
\tdirectory = *
[init]
\tdefaultBranch = main
[fetch]
\trecurseSubmodules = false
\tunpackLimit = 1
[submodule]
\trecurse = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[pack]
\tthreads = 1
[user]
\tname = InterCode
\temail = intercode@example.invalid
"""
_DATE = "2000-01-01T00:00:00Z"


class Git:
    """Runs git.

    Args:
        scratch: An existing folder for its configuration.
    """

    def __init__(self, scratch: Path) -> None:
        config = scratch / "gitconfig"
        config.write_text(_OWN_CONFIG, encoding="ascii")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self._env = {
            **kept,
            "GIT_CONFIG_GLOBAL": str(config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # above all not ext, which runs things
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_DATE": _DATE,
            "GIT_COMMITTER_DATE": _DATE,
            "LC_ALL": "C",
        }

    def __call__(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> str:
        """Return the output of a git command, without surrounding blanks.

        Raises:
            ImageError: There is no git, or it failed; the message is what it said.
        """
        return self.raw(*arguments, stdin=stdin).decode(errors="surrogateescape").strip()

    def raw(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> bytes:
        """Return the output of a git command as it is.

        Raises:
            ImageError: As named.
        """
        try:
            done = subprocess.run(
                ["git", *map(str, arguments)],
                env=self._env,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise ImageError("there is no git on this machine: apt-get install git") from None
        except subprocess.TimeoutExpired:
            raise ImageError(f"git was not done within {_SECONDS:.0f} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ImageError(f"git failed: {said or f'exit code {done.returncode}'}")
        return done.stdout

    def objects(self, folder: Path, largest: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of a repository's objects, reachable or not, except trees.

        Args:
            folder: The folder of git's, without a work tree.
            largest: The most bytes of an object; the rest is left out.
        """
        argv = ["git", "--git-dir", str(folder), "cat-file", "--batch-all-objects", "--batch"]
        with subprocess.Popen(
            argv,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as running:
            out = running.stdout
            while out is not None and (header := out.readline()):
                name, kind, size = header.split()
                data = out.read(min(int(size), largest))
                left = int(size) + 1 - len(data)  # with a line's end
                while left > 0 and (more := out.read(min(left, 1 << 20))):
                    left -= len(more)
                if kind != b"tree":
                    yield name.decode(), data
