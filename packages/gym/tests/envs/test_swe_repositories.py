"""Repositories of tasks: wherever they come from, with nothing later than the base commit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from intercode.envs.swe import SweEnv
from intercode.errors import ImageError
from intercode.task import Dataset
from intercode_sandbox import Limits
from intercode_sandbox.images.git_repository import prepare
from waiting import PATIENCE

from .swe_tasks import FILES, GOLD, git, make_repository, task, write

BASE = "v1"


def bundle(repository: Path, place: Path) -> Path:
    git(repository, "bundle", "create", "--quiet", str(place / "calc.bundle"), "--all")
    return place / "calc.bundle"


def stream(repository: Path, place: Path) -> Path:
    text = git(repository, "fast-export", "--all", "--signed-tags=strip")
    (place / "calc.fi").write_text(text + "\n")
    return place / "calc.fi"


def bare(repository: Path, place: Path) -> Path:
    git(repository, "clone", "--quiet", "--mirror", ".", str(place / "calc.git"))
    return place / "calc.git"


def tarball(repository: Path, place: Path) -> Path:
    subprocess.run(
        ["tar", "-czf", str(place / "calc.tar.gz"), "-C", str(repository.parent), "calc"],
        check=True,
    )
    return place / "calc.tar.gz"


def worktree(repository: Path, place: Path) -> Path:
    git(repository, "worktree", "add", "--quiet", "--detach", str(place / "tree"), "v2")
    return place / "tree"


def url(repository: Path, place: Path) -> str:
    return f"file://{repository}"


def itself(repository: Path, place: Path) -> Path:
    return repository


SOURCES: list[Callable[[Path, Path], object]] = [
    itself, bare, bundle, stream, tarball, worktree, url,
]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with as much as there can be from which the fix could be read."""
    folder = tmp_path_factory.mktemp("sources") / "calc"
    make_repository(folder)
    git(folder, "branch", "later")
    git(folder, "notes", "add", "-m", "the fix that nobody may see", "v1")
    write(folder, {"calc.py": "# the fix that nobody may see, stashed\n"})
    git(folder, "stash")
    git(folder, "remote", "add", "origin", "https://example.org/fix.git")
    git(folder, "config", "alias.fix", "!echo the fix that nobody may see")
    return folder


def steps(
    source: object, *actions: str, history: str = "none", image: str | None = None, **facts: object
) -> list[str]:
    tasks = Dataset([task("t", "unittest", repository=str(source), **facts)])
    env = SweEnv(tasks, limits=Limits(timeout=PATIENCE), history=history, image=image)
    env.reset()
    seen = [env.step(action)[0] for action in actions]
    env.close()
    return seen


@pytest.mark.parametrize(("history", "shown"), [("none", "More\n"), ("full", "More\nBegin\n")])
@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_the_base_and_no_more_than_its_history(
    source: Path,
    tmp_path: Path,
    make: Callable[[Path, Path], object],
    history: str,
    shown: str,
) -> None:
    given = make(source, tmp_path)
    log, objects, refs, found, rest, clean = steps(
        given,
        "git log --all --format=%s",
        "git cat-file --batch-all-objects --batch-check | cut -d' ' -f1 | sort > /tmp/all; "
        "git rev-list --objects HEAD | cut -d' ' -f1 | sort | diff /tmp/all -; "
        "git fsck --lost-found",
        "git for-each-ref; git remote; git stash list; git reflog; git tag; git notes list",
        "git cat-file --batch-all-objects --batch < /dev/null | grep -ac 'nobody may see'; "
        "grep -rac 'nobody may see' . | grep -v :0",
        "ls .git; ls .git/objects/info; test -e .git/shallow || echo no",
        "git status --short",
        history=history,
    )
    everything = git(source, "cat-file", "--batch-all-objects", "--batch")
    assert everything.count("nobody may see") == 3  # the fix, a note, a stash
    assert log == shown
    assert objects == ""
    assert refs.endswith("commit\trefs/heads/main\n") and refs.count("\n") == 1
    assert found == "0\n"
    assert rest == "HEAD\nconfig\nindex\nobjects\nrefs\nno\n"
    assert clean == ""


@pytest.mark.parametrize("history", ["none", "full"])
@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_names_of_objects_may_be_sha256(
    tmp_path: Path, make: Callable[[Path, Path], object], history: str
) -> None:
    folder = tmp_path / "calc"
    base = make_repository(folder, "sha256")
    name = "v1" if make is stream else base  # a stream's text has no names of objects
    row = task("t", "unittest", repository=str(make(folder, tmp_path)), base_commit=name)
    with closing(SweEnv(Dataset([row]), limits=Limits(timeout=PATIENCE), history=history)) as env:
        env.reset()
        assert env.step("git log -1 --format=%s; git status --short; git fsck")[0] == "More\n"
        length = len(env.step("git rev-parse HEAD")[0].strip())
        assert length == (40 if make is stream else 64)
        env.step(f"git apply - <<'EOF'\n{GOLD}EOF")
        assert env.step("submit")[1] == 1.0


def test_where_it_comes_from_makes_no_difference(source: Path, tmp_path: Path) -> None:
    commit = git(source, "rev-parse", "v1")
    places = (str(source), str(bare(source, tmp_path)), f"file://{source}")
    keys = {prepare(place, commit, "/repo")[0] for place in places}
    assert len(keys) == 1
    assert prepare(str(source), commit, "/other")[0] not in keys
    full = {prepare(place, commit, "/repo", "full")[0] for place in places}
    assert len(full) == 1 and full != keys


def test_one_commit_is_as_people_expect_it(source: Path, tmp_path: Path) -> None:
    facts = "--format='%an %ae %aI %cn %ce %cI %T %B'"
    seen = steps(
        source,
        f"git log {facts}; git cat-file -p HEAD | grep -c parent; git rev-list --all --count",
        "git fsck --strict; git status --short; git describe --always | wc -c",
        "git blame -s calc.py | cut -d' ' -f1 | sort -u | wc -l; git show --stat | tail -n1",
        "echo '# x' >> calc.py; git diff --stat | tail -n1; git stash -q; git status --short; "
        "git stash pop -q; git status --short",
        "git commit -qam Own; git log --format=%s; git diff --stat HEAD~1 | tail -n1; "
        "git reset -q --hard HEAD~1; git gc -q; git log --format=%s",
    )
    before = git(source, "log", "-1", facts.replace("'", ""), "v1")
    assert seen[0] == f"{before}\n\n0\n1\n"
    assert seen[1].splitlines()[-1].isdigit() and seen[1].count("\n") == 1
    assert seen[2] == "1\n 5 files changed, 16 insertions(+)\n"
    assert seen[3] == " 1 file changed, 1 insertion(+)\n M calc.py\n"
    assert seen[4] == "Own\nMore\n 1 file changed, 1 insertion(+)\nMore\n"


def test_a_commit_of_any_form(tmp_path: Path) -> None:
    """Signed, merged, in another encoding, without a name."""
    folder = tmp_path / "odd"
    base = make_repository(folder)
    tree = git(folder, "rev-parse", "HEAD^{tree}")
    text = (
        f"tree {tree}\nparent {base}\nparent {git(folder, 'rev-parse', 'HEAD')}\n"
        "author  <> 86400 +0000\ncommitter A U Thor <a@b.c> 86400 +0100\nencoding latin-1\n"
        f"mergetag object {base}\n type commit\n tag v9\n tagger T <t@t> 1 +0000\n \n secret\n"
        "gpgsig -----BEGIN PGP SIGNATURE-----\n \n secret\n -----END PGP SIGNATURE-----\n\n"
    )
    path = tmp_path / "commit"
    path.write_bytes(text.encode() + b"parent of \xe9\n\nsecond paragraph")
    name = git(folder, "hash-object", "-t", "commit", "-w", "--literally", str(path))
    git(folder, "tag", "-f", "v9", name)
    (seen,) = steps(folder, "git cat-file -p HEAD; git log --format=%s", base_commit="v9")
    assert "secret" not in seen and base not in seen
    assert "encoding latin-1\n\nparent of" in seen and seen.endswith("paragraphparent of é\n")


def test_a_repository_of_the_image_s_own_is_hidden_but_not_its_other_files(
    source: Path, tmp_path: Path
) -> None:
    write(tmp_path / "image" / "srv" / "code", {"built.so": "x", "calc.py": "old"})
    for name in ("srv/code", "root/other"):
        git(source, "clone", "--quiet", ".", str(tmp_path / "image" / name / "x"))
        (tmp_path / "image" / name / "x" / ".git").rename(tmp_path / "image" / name / ".git")
    packed = tmp_path / "image.tar"
    subprocess.run(["tar", "-cf", packed, "-C", tmp_path / "image", "srv", "root"], check=True)
    seen = steps(
        source,
        "cat built.so; git log --all --format=%s; ls .git; git status --short; head -n1 calc.py",
        "git -C /root/other log --format=%s v2 | head -n1",
        image=f"host+{packed}",
        directory="/srv/code",
    )
    expected = "xMore\nHEAD\nconfig\nindex\nobjects\nrefs\n?? built.so\n?? x/\ndef add(a, b):\n"
    assert seen == [expected, "Fix add\n"]


def test_a_tarball_of_plain_files_is_one_commit(tmp_path: Path) -> None:
    write(tmp_path / "calc", {**FILES, ".gitignore": "*.txt\n"})
    packed = tarball(tmp_path / "calc", tmp_path)
    facts = {"base_commit": None}
    seen = steps(packed, "git log --format='%s %ad'; git status --short; git ls-files", **facts)
    assert seen[0].splitlines()[1:] == [".gitignore", *sorted(FILES)]
    assert seen[0].startswith("Begin Sat Jan 1 00:00:00 2000")


def test_a_relative_repository_lies_beside_the_data(source: Path, tmp_path: Path) -> None:
    stream(source, tmp_path)
    row = task("t", "unittest", repository="calc.fi", directory="/srv/code")
    env = SweEnv(Dataset([replace(row, folder=tmp_path)]))
    env.reset()
    assert env.step("pwd; git log -1 --format=%s")[0] == "/srv/code\nMore\n"
    env.step(f"git apply - <<'EOF'\n{GOLD}EOF")
    assert env.step("submit")[1] == 1.0
    env.close()


def test_nothing_of_a_repository_is_run(tmp_path: Path) -> None:
    """Nor anything that it, or its own settings, would have git run."""
    folder = tmp_path / "evil"
    make_repository(folder)
    ran = tmp_path / "ran"
    for name in ("post-checkout", "post-commit", "reference-transaction", "pre-commit"):
        (folder / ".git" / "hooks" / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        (folder / ".git" / "hooks" / name).chmod(0o755)
    write(folder, {".gitattributes": "* filter=x diff=x\n", ".gitmodules": (
        f'[submodule "s"]\n\tpath = s\n\turl = ext::touch {ran}\n')})  # fmt: skip
    git(folder, "add", ".gitattributes", ".gitmodules")
    git(folder, "commit", "--quiet", "--no-verify", "--message=x")
    ran.unlink(missing_ok=True)
    for setting in ("filter.x.smudge", "filter.x.clean", "core.fsmonitor", "diff.x.textconv",
                    "core.sshCommand", "uploadpack.packObjectsHook", "core.pager",
                    "core.alternateRefsCommand", "credential.helper"):  # fmt: skip
        git(folder, "config", setting, f"touch {ran}; false")
    for given in (folder, tarball_of(folder, tmp_path)):
        assert steps(given, "git log -1 --format=%s; ls -A", base_commit="main")[0].startswith(
            "x\n"
        )
    assert not ran.exists()


def test_trees_of_all_kinds(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    base = make_repository(folder)
    (folder / "crlf.txt").write_bytes(b"a\r\n")
    write(folder, {".gitattributes": "*.txt eol=lf\n", "run": "#!/bin/sh\necho ran\n", "é \n": "x"})
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("run")
    (folder / "out").symlink_to("/etc/hostname")
    git(folder, "add", ".gitattributes", "run", "link", "out", "é \n")
    blob = git(folder, "hash-object", "-w", "--no-filters", "crlf.txt")
    for entry in (f"160000,{base},sub", f"100644,{blob},crlf.txt"):
        git(folder, "update-index", "--add", "--cacheinfo", entry)
    git(folder, "commit", "--quiet", "--message=odd")
    seen = steps(
        folder, "./link; ls -d sub out; ls | head -1; wc -c < crlf.txt", base_commit="main"
    )
    assert seen[0].splitlines()[:3] == ["ran", "out", "sub"]


def test_without_git(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ImageError, match="there is no git on this machine: apt-get install git"):
        prepare(str(source), "v1", "/repo")


@pytest.mark.parametrize(
    "command",
    [
        "echo $S/.git/objects > .git/objects/info/alternates",
        "rm -rf .git; echo gitdir: $S/.git > .git",
        "rm -rf .git; ln -s $S/.git .git",
        "rm -rf .git/objects; ln -s $S/.git/objects .git/objects",
        "echo $S/.git > .git/commondir",
        "rm .git/HEAD; mkfifo .git/HEAD",
    ],
)
def test_an_archive_cannot_name_another_repository(
    source: Path, tmp_path: Path, command: str
) -> None:
    """The rows and archives of others must not bring this machine's repositories into a sandbox."""
    folder = tmp_path / "other"
    make_repository(folder)
    subprocess.run(["bash", "-c", command], cwd=folder, env={"S": str(source)}, check=True)
    with pytest.raises(ImageError, match="refused the repository"):
        prepare(str(tarball_of(folder, tmp_path)), "v1", "/repo")


def tarball_of(folder: Path, place: Path) -> Path:
    path = place / "evil.tar"
    subprocess.run(["tar", "-cf", str(path), "-C", str(folder), "."], check=True)
    return path


def test_a_shallow_source_stays_shallow(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "shallow.git"
    git(
        source,
        "clone",
        "--quiet",
        "--bare",
        "--depth=1",
        "--branch=v1",
        url(source, place),
        str(place),
    )
    look = "git log --format=%s; git status --short; ls .git | grep shallow"
    assert steps(place, look) == ["More\n"]
    assert steps(place, look, history="full") == ["More\nshallow\n"]


def test_the_index_knows_that_nothing_was_changed(source: Path) -> None:
    """So that the first `git status` need not read a large repository."""
    (files,) = steps(
        source, "git ls-files --debug | grep -c 'size: 0' ; git diff-files --name-only"
    )
    assert files == "1\n"  # the one that is empty
