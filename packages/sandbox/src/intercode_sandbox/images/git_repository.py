"""Preparation of a git repository at one commit, as a tarball that can be added to an image.

The tarball's repository has that commit only. With `FULL_HISTORY` it also has all earlier commits,
in which an agent may find an answer. The commits are fetched into a new repository, which gets no
other commit, tag, remote, reflog, stash, note, hook or setting of the source. If the image has a
repository at the same path, the new one hides it. The preparation executes no code of the
repository: see `GitRunner`.
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
from intercode_sandbox.host_files import cache_root, file_digest, file_lock
from intercode_sandbox.images.base import ARCHIVES, Image
from intercode_sandbox.images.cache import keep_tarball, take_tarball
from intercode_sandbox.images.tarballs import pack, unpack, write_tarball

log = logging.getLogger(__name__)

VERSION = "2"
NO_HISTORY, FULL_HISTORY = HISTORIES = ("none", "full")
"""The possible histories of a prepared repository. With ``none`` the repository has one commit,
without parents. With ``full`` it also has all earlier commits."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
_COMMIT_DIGEST = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NAME = re.compile(r"\w[\w./-]*")
_FILES = (*ARCHIVES, ".bundle", ".fi")
"""Endings of files that may be the source of a repository."""
# The checked-out files have the commit's time, and their inodes differ between sandboxes. By the
# settings checkStat and trustctime, git recognises the files as unchanged without reading them.
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


def is_url(source: str) -> bool:
    """Return whether a source is a URL, from which git fetches the repository."""
    return _URL.match(source) is not None


def prepare(
    source: str, commit: str | None, image_path: str, history: str = NO_HISTORY
) -> tuple[str, Path]:
    """Prepare a repository as a tarball in the cache, unless the cache has the tarball already.

    Args:
        source: The source: a git repository (a folder with ``.git``, or a bare one), a folder of
            plain files, or a tarball of either. Or a ``.bundle``, a ``.fi`` (the output of ``git
            fast-export``), or a URL.
        commit: The commit, tag or branch to check out; None for plain files, which become one
            commit.
        image_path: The absolute path of the repository in the image.
        history: One of `HISTORIES`.

    Returns:
        A digest of the inputs, and the path of the tarball. For a repository in a folder or at a
        URL, the digest depends on the commit, not on the source.

    Raises:
        ImageError: Git is not installed, or the repository or the commit does not exist.
    """
    if commit is not None and not _NAME.fullmatch(commit):
        raise ImageError(f"{commit!r} is not a commit")
    repositories_folder = cache_root() / "repositories"
    try:
        repositories_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=repositories_folder, prefix=".") as scratch_folder:
            return _prepare(
                repositories_folder, Path(scratch_folder), source, commit, image_path, history
            )
    except OSError as error:
        raise ImageError(f"cannot prepare the repository {source}: {error}") from error


def _prepare(
    repositories_folder: Path,
    scratch: Path,
    source: str,
    commit: str | None,
    image_path: str,
    history: str,
) -> tuple[str, Path]:
    git = GitRunner(scratch)
    source_path = Path(source)
    if source_path.is_dir() and not _is_repository(
        source_path
    ):  # the source is a folder of plain files
        if commit is not None:
            raise ImageError(
                f"{source_path} is not a git repository, and so has no commit {commit!r}"
            )
        source_path = pack(source_path, "/files")
        source = str(source_path)
    if is_url(source):
        source_key = commit if commit and _COMMIT_DIGEST.fullmatch(commit) else None
    elif source_path.is_dir():
        source = str(_git_folder(source_path))
        commit = _resolve(git, source, commit, source_path)
        source_key = commit + (_shallow_digest(git, source) if history == FULL_HISTORY else "")
    elif source_path.is_file() and source_path.name.endswith(_FILES):
        source_key = f"{file_digest(source_path)}:{commit}"
    else:
        endings = ", ".join(_FILES)
        raise ImageError(
            f"there is no repository {source_path}: neither a folder nor one of {endings}"
        )
    # A branch or tag of a URL may have moved since an earlier preparation. So it is fetched first.
    if source_key is None:
        source_key = commit = _fetch_commit(git, scratch, source, commit, history)
        source = str(scratch / "source")
    key_text = "\0".join([VERSION, history, image_path, source_key])
    tarball_key = hashlib.blake2b(key_text.encode(), digest_size=16).hexdigest()
    tarball_path = repositories_folder / f"{tarball_key}.tar"
    with file_lock(repositories_folder / f"{tarball_key}.lock"):
        if not take_tarball(tarball_path):
            _build(git, scratch, source, commit, image_path, history, tarball_path)
    return tarball_key, tarball_path


def _build(
    git: GitRunner,
    scratch: Path,
    source: str,
    commit: str | None,
    image_path: str,
    history: str,
    tarball_path: Path,
) -> None:
    log.info("preparing the repository %s at %s", source, commit)
    work_tree = scratch / "new"
    with _repository(git, scratch, source, commit, history) as (source_folder, source_commit):
        git("init", "--quiet", "--template=", *_format_options(source_commit or ""), work_tree)
        if source_commit is None:
            _commit_files(git, source_folder, work_tree)
        else:
            git("-C", work_tree, "fetch", "--quiet", "--no-tags", *_depth(history),
            "--update-shallow",
                "--update-head-ok", source_folder, f"+{source_commit}:refs/heads/main")  # fmt: skip
            if history == NO_HISTORY:
                _forget_parents(git, work_tree, scratch)
            git("-C", work_tree, "read-tree", "--reset", "-u", "refs/heads/main")
    commit_time = int(git("-C", work_tree, "show", "--no-patch", "--format=%ct", "HEAD"))
    _finish(git, work_tree, commit_time)
    with (scratch / "tar").open("wb") as tarball_file:
        write_tarball(tarball_file, work_tree, image_path, keep_times=True, opaque_names=(".git",))
    keep_tarball(scratch / "tar", tarball_path)


def _format_options(object_name: str) -> list[str]:
    """Return the options of ``git init`` for the object format (SHA-1 or SHA-256) of a name.

    Args:
        object_name: The full name of an object, in hexadecimal.
    """
    return ["--object-format=sha256"] if len(object_name) == _SHA256_DIGITS else []


def _depth(history: str) -> list[str]:
    return ["--depth=1"] if history == NO_HISTORY else []


_COMMIT_FIELDS = (b"tree ", b"author ", b"committer ", b"encoding ")
"""Beginnings of the lines of a commit's head that the new commit keeps. The parents are dropped.
The signature is dropped, too, because it would not match the new commit."""


def _forget_parents(git: GitRunner, work_tree: Path, scratch: Path) -> None:
    """Replace a repository's commit by an equal commit without parents; remove other objects.

    Args:
        git: The runner of git.
        work_tree: The work tree of the repository.
        scratch: A folder for temporary files.
    """
    folder_option = ("-C", work_tree)
    commit_head, _, message = git.raw_output(
        *folder_option, "cat-file", "commit", "refs/heads/main"
    ).partition(b"\n\n")
    lines = [line for line in commit_head.split(b"\n") if line.startswith(_COMMIT_FIELDS)]
    (scratch / "commit").write_bytes(b"\n".join(lines) + b"\n\n" + message)
    commit_name = git(
        *folder_option, "hash-object", "-t", "commit", "-w", "--literally", scratch / "commit"
    )
    git(*folder_option, "update-ref", "refs/heads/main", commit_name)
    (work_tree / ".git" / "shallow").unlink(missing_ok=True)
    git(*folder_option, "repack", "-a", "-d", "-n", "-q")
    git(*folder_option, "prune", "--expire=now")


@contextmanager
def _repository(
    git: GitRunner, scratch: Path, source: str, commit: str | None, history: str
) -> Iterator[tuple[Path, str | None]]:
    """Make the source available as a local folder, while the block runs.

    Yields the path of a git folder or of a folder with plain files. The second value is the full
    name of the commit, or None for plain files.
    """
    if is_url(source):
        fetched_commit = _fetch_commit(git, scratch, source, commit, history)
        yield scratch / "source", fetched_commit
        return
    source_path = Path(source)
    if source_path.is_dir() or source_path.name == ".git":  # in a linked work tree, .git is a file
        yield source_path, commit
        return
    repository_folder = scratch / "source"
    if source_path.suffix == ".fi":
        git("init", "--quiet", "--bare", "--template=", repository_folder)
        with source_path.open("rb") as stream_file:
            git("--git-dir", repository_folder, "fast-import", "--quiet", stdin=stream_file)
    elif source_path.suffix == ".bundle":
        heads = git("bundle", "list-heads", source_path)
        git(
            "init",
            "--quiet",
            "--bare",
            "--template=",
            *_format_options(heads.partition(" ")[0]),
            repository_folder,
        )
        git("--git-dir", repository_folder, "fetch", "--quiet", source_path, "+refs/*:refs/*")
    else:
        repository_folder = _unpack_tarball(source_path, repository_folder)
        if not _is_repository(repository_folder):
            if commit is not None:
                raise ImageError(f"{source_path} has no .git, and so no commit {commit!r}")
            yield repository_folder, None
            return
        repository_folder = _git_folder(repository_folder)
        _refuse_links(repository_folder, source_path)
    yield repository_folder, _resolve(git, str(repository_folder), commit, source_path)


def _fetch_commit(git: GitRunner, scratch: Path, url: str, commit: str | None, history: str) -> str:
    """Fetch a commit from a URL into the repository ``scratch/source``; return its full name."""
    if commit is None:
        raise ImageError(f"the commit of {url} is missing: name it in 'base_commit'")
    repository_folder = scratch / "source"
    if not repository_folder.exists():
        object_name = commit
        if not _COMMIT_DIGEST.fullmatch(commit):
            object_name = git("ls-remote", "--", url).partition("\t")[0]
        git(
            "init",
            "--quiet",
            "--bare",
            "--template=",
            *_format_options(object_name),
            repository_folder,
        )
        git("--git-dir", repository_folder, "fetch", "--quiet", "--no-tags", *_depth(history), "--",
        url,
            f"+{commit}:refs/it")  # fmt: skip
    return git("--git-dir", repository_folder, "rev-parse", "--verify", "refs/it^{commit}")


def _is_repository(folder: Path) -> bool:
    is_bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    return is_bare or (folder / ".git").exists()


def _git_folder(folder: Path) -> Path:
    git_folder = folder / ".git"
    return git_folder if git_folder.exists() else folder


def _resolve(git: GitRunner, git_folder: str, commit: str | None, source_path: Path) -> str:
    if commit is None:
        raise ImageError(f"the commit of {source_path} is missing: name it in 'base_commit'")
    try:
        return git("--git-dir", git_folder, "rev-parse", "--verify", "--end-of-options",
                   f"{commit}^{{commit}}")  # fmt: skip
    except ImageError as error:
        raise ImageError(f"{source_path} has no commit {commit!r}: {error}") from None


def _shallow_digest(git: GitRunner, git_folder: str) -> str:
    """Return a digest of the commits at which a shallow repository ends.

    The text is empty for a repository with its whole history, the usual case.
    """
    if git("--git-dir", git_folder, "rev-parse", "--is-shallow-repository") == "false":
        return ""
    return file_digest(Path(git("--git-dir", git_folder, "rev-parse", "--git-path", "shallow")))


def _unpack_tarball(tarball_path: Path, folder: Path) -> Path:
    """Unpack a tarball into a folder. Return that folder, or the only folder that it contains."""
    folder.mkdir()
    with tarball_path.open("rb") as file:
        unpack(file, tarball_path, folder, Image(name=tarball_path.name, digest="", layers=()))
    entries = list(folder.iterdir())
    top_entry = entries[0] if len(entries) == 1 else folder
    return (
        top_entry
        if top_entry.is_dir() and not top_entry.is_symlink() and top_entry.name != ".git"
        else folder
    )


def refuse_links(folder: Path) -> None:
    """Refuse an untrusted repository by which git would read files outside the repository.

    Args:
        folder: A folder. A folder without a repository is accepted.

    Raises:
        ImageError: The repository leads out of its folder, or has links or special files in .git.
    """
    if folder.is_dir() and _is_repository(folder):
        _refuse_links(_git_folder(folder), folder)


def _refuse_links(git_folder: Path, repository_folder: Path) -> None:
    for name in ("commondir", "objects/info/alternates"):
        if os.path.lexists(git_folder / name):
            raise ImageError(
                f"refused the repository in {repository_folder}: its {name} points out of the "
                "repository"
            )
    if git_folder.is_symlink() or not git_folder.is_dir():
        raise ImageError(f"refused the repository in {repository_folder}: its .git is not a folder")
    for entry in git_folder.rglob("*"):
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            relative_path = entry.relative_to(git_folder)
            raise ImageError(
                f"refused the repository in {repository_folder}: {relative_path} in .git is not "
                "a file"
            )


def _commit_files(git: GitRunner, source_folder: Path, work_tree: Path) -> None:
    for entry in source_folder.iterdir():
        shutil.move(entry, work_tree)
    git("-C", work_tree, "add", "--all", "--force")
    git("-C", work_tree, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "--message=Begin")


def _finish(git: GitRunner, work_tree: Path, commit_time: int) -> None:
    """Remove the preparation's traces from .git, write its config, and set the time of all files.

    Args:
        git: The runner of git.
        work_tree: The work tree of the repository.
        commit_time: The commit's time, which all files get.
    """
    git_folder = work_tree / ".git"
    for name in ("FETCH_HEAD", "ORIG_HEAD", "COMMIT_EDITMSG", "logs", "description"):
        metadata_path = git_folder / name
        if metadata_path.is_dir():
            shutil.rmtree(metadata_path)
        else:
            metadata_path.unlink(missing_ok=True)
    is_sha256 = git("-C", work_tree, "rev-parse", "--show-object-format") == "sha256"
    config = _CONFIG.replace("version = 0", "version = 1") + _SHA256 if is_sha256 else _CONFIG
    (git_folder / "config").write_text(config, encoding="ascii")
    _set_times(work_tree, commit_time)
    # This command refreshes the index. Unlike update-index, it does not fail for files that git
    # considers changed right after the checkout, because of their line endings.
    git("-C", work_tree, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    # The index must be newer than the files. Otherwise git would not trust the times in it.
    _set_times(git_folder, commit_time)
    os.utime(git_folder / "index", (commit_time + 1, commit_time + 1))


def _set_times(folder: Path, timestamp: int) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            os.utime(Path(parent, name), (timestamp, timestamp), follow_symlinks=False)
        os.utime(parent, (timestamp, timestamp))


_SECONDS = 3600.0
_GIT_CONFIG = """\
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


class GitRunner:
    """A runner of git commands with an isolated configuration.

    With this configuration git executes no code of a repository, such as hooks.

    Args:
        scratch: An existing folder for the configuration file.
    """

    def __init__(self, scratch: Path) -> None:
        config_file = scratch / "gitconfig"
        config_file.write_text(_GIT_CONFIG, encoding="ascii")
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("GIT_")
        }
        self._env = {
            **variables,
            "GIT_CONFIG_GLOBAL": str(config_file),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",  # the protocol ext would run code
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_DATE": _DATE,
            "GIT_COMMITTER_DATE": _DATE,
            "LC_ALL": "C",
        }

    def __call__(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> str:
        """Return the output of a git command, without surrounding whitespace.

        Raises:
            ImageError: Git is not installed, or failed; the message is git's.
        """
        return self.raw_output(*arguments, stdin=stdin).decode(errors="surrogateescape").strip()

    def raw_output(self, *arguments: str | Path, stdin: IO[bytes] | None = None) -> bytes:
        """Return the raw output of a git command.

        Raises:
            ImageError: Git is not installed, failed, or took too long; the message is git's.
        """
        try:
            result = subprocess.run(
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
            raise ImageError(f"git did not finish within {_SECONDS:.0f} s") from None
        if result.returncode:
            message = result.stderr.decode(errors="replace").strip()
            raise ImageError(f"git failed: {message or f'exit code {result.returncode}'}")
        return result.stdout

    def objects(self, folder: Path, max_bytes: int) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the content of each object of a repository, except trees.

        Objects that no branch or tag reaches are included.

        Args:
            folder: The git folder.
            max_bytes: Maximum of bytes of an object's content; the rest is omitted.
        """
        argv = ["git", "--git-dir", str(folder), "cat-file", "--batch-all-objects", "--batch"]
        with subprocess.Popen(
            argv,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            stdout = process.stdout
            while stdout is not None and (header := stdout.readline()):
                name, kind, size = header.split()
                data = stdout.read(min(int(size), max_bytes))
                # A line feed follows the content.
                bytes_to_skip = int(size) + 1 - len(data)
                while bytes_to_skip > 0 and (chunk := stdout.read(min(bytes_to_skip, 1 << 20))):
                    bytes_to_skip -= len(chunk)
                if kind != b"tree":
                    yield name.decode(), data
