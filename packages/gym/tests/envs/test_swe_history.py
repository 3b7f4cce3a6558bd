"""The past of a repository: none of it can be read where the answer stands in an earlier commit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode.envs.swe import SweEnv
from intercode.task import Dataset, Task
from intercode_sandbox import Limits
from waiting import PATIENCE

from .swe_tasks import TEST_PATCH, git, task, write

SECRET = "return a + b  # as it was"
FULL_CODE = f"def add(a, b):\n    {SECRET}\n\n\ndef double(a):\n    return 2 * a\n"
STUBS = FULL_CODE.replace(SECRET, "raise NotImplementedError")
TESTS = "import unittest\n\nimport calc\n\n\nclass CalcTest(unittest.TestCase):\n"
TESTS += "    def test_double(self):\n        self.assertEqual(calc.double(2), 4)\n"
GOLD = f"""\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    raise NotImplementedError
+    {SECRET}
 
 
 def double(a):
"""  # noqa: W293

_LIST = "git cat-file --batch --buffer"
WAYS = {
    "the commit before": "git show HEAD~1:calc.py",
    "the commit itself, against its parent": "git show HEAD",
    "its parents by another name": "git show HEAD^:calc.py; git show HEAD^1:calc.py",
    "all commits": "git log -p --all --full-history",
    "a search in all commits": "git log --all -S'a + b' -p; git log -p -G'a . b' --follow calc.py",
    "a line's history": "git log -L1,3:calc.py; git blame --porcelain calc.py",
    "reflogs": "git log -g -p --all; git show HEAD@{1} @{1} @{-1}; cat -r .git/logs",
    "fsck": "git fsck --lost-found; cat .git/lost-found/*/*",
    "unreachable objects": "git fsck --unreachable --no-reflogs --cache | cut -d' ' -f3 | " + _LIST,
    "all objects": f"{_LIST} --batch-all-objects < /dev/null",
    "objects by their names": "git show {old}:calc.py; git cat-file -p {blob}; git show {later}",
    "packs' lists": "git verify-pack -v .git/objects/pack/*.idx | cut -d' ' -f1 | " + _LIST,
    "packs, unpacked": "git init -q /tmp/n; for p in .git/objects/pack/*.pack; do git -C /tmp/n "
    f"unpack-objects < $p; done; cd /tmp/n; {_LIST} --batch-all-objects < /dev/null; cd /repo",
    "loose objects": "python3 -c \"import glob,zlib\nfor f in glob.glob('.git/objects/??/*'): "
    'print(zlib.decompress(open(f, \'rb\').read()))"',
    "a stash": "git stash list -p; git stash show -p; git show stash@{0} refs/stash",
    "notes": "git notes list; git log --show-notes='*'; git show refs/notes/commits",
    "every ref": "git for-each-ref --format='%(objectname)' | xargs -n1 git show",
    "tags": "git tag | xargs -n1 git show; git describe --all --contains HEAD; git show v2 v0",
    "packed refs": "cut -d' ' -f1 .git/packed-refs | xargs -n1 git show",
    "heads of merges": "for f in ORIG_HEAD FETCH_HEAD MERGE_HEAD CHERRY_PICK_HEAD REBASE_HEAD "
    "AUTO_MERGE; do cat .git/$f; git show $f; git show $f:calc.py; done",
    "replaced objects": "git replace -l --format=long; git show refs/replace/{base}; "
    "GIT_NO_REPLACE_OBJECTS=1 git show HEAD",
    "worktrees": "git worktree list; cat .git/worktrees/*/*; git worktree add /tmp/w HEAD~1; "
    "cat /tmp/w/calc.py",
    "submodules": "git submodule update --init; find .git/modules -type f | xargs cat",
    "other object stores": "cat .git/objects/info/*alternates; "
    "GIT_ALTERNATE_OBJECT_DIRECTORIES=$(cat .git/objects/info/alternates) git show {old}:calc.py",
    "more from the source": "git fetch --unshallow; git fetch --all; git pull; git fetch "
    "--deepen=5 origin; rm -f .git/shallow; git show HEAD~1",
    "a bundle of all": "git bundle create /tmp/b --all; git clone -q /tmp/b /tmp/c; "
    "git -C /tmp/c show HEAD~1:calc.py",
    "bundles that lie about": "for b in $(find .git / -maxdepth 2 -name '*.bundle'); do git clone "
    "-q $b /tmp/d; git -C /tmp/d log -p --all; done",
    "rerere's cache": "git rerere diff; cat .git/rr-cache/*/*",
    "logs of git's own": "cat .git/gc.log .git/gc.pid .git/COMMIT_EDITMSG .git/logs/HEAD",
    "the index": "git ls-files -s --resolve-undo; git ls-files -u | cut -d' ' -f2 | " + _LIST
    + "; strings .git/index; cat .git/index .git/index.* .git/sharedindex.*",
    "the graph of commits": "git commit-graph verify; cat .git/objects/info/commit-graph* | "
    "grep -ac {old_prefix}; git log --graph --oneline -p",
    "going back": "git checkout HEAD~1 -- calc.py && cat calc.py; git restore -s HEAD~1 calc.py; "
    "cat calc.py; git reset --hard HEAD~1; cat calc.py",
    "undoing": "git revert --no-edit HEAD; cat calc.py; git rebase --root; cat calc.py",
    "bisecting": "git bisect start HEAD HEAD~1; cat calc.py; git bisect reset",
    "archives and patches": "git archive HEAD~1 | tar -xO; git format-patch --stdout -3; "
    "git diff HEAD~1; git range-diff HEAD~2 HEAD~1 HEAD",
    "settings and hooks": "cat .git/config .git/description .git/hooks/* .git/info/*; git fix",
    "a promisor": "git config remote.origin.promisor true; git fetch origin {old}",
    "merge bases and grafts": "cat .git/info/grafts .git/shallow; git log -p --no-replace-objects",
    "everything under .git as it is": "grep -rah 'as it was' .git; find .git -type f | xargs cat",
    "backups of git's folder": "find / -xdev -name '*.git' -o -xdev -name '.git?*' | xargs cat",
}  # fmt: skip
"""Commands that show an older state, where it can be shown."""


def make_past(folder: Path) -> dict[str, str]:
    """Make a repository with the answer in all of its past; return the names of its objects."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    write(folder, {"calc.py": FULL_CODE, "tests/__init__.py": "", "tests/test_calc.py": TESTS})
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=Write it")
    git(folder, "tag", "v0")
    old, blob = git(folder, "rev-parse", "HEAD"), git(folder, "rev-parse", "HEAD:calc.py")
    write(folder, {"calc.py": STUBS})
    git(folder, "commit", "--quiet", "--all", "--message=Leave stubs")
    git(folder, "tag", "v1")
    base = git(folder, "rev-parse", "HEAD")
    git(folder, "notes", "add", "-m", SECRET)
    write(folder, {"calc.py": FULL_CODE + "# stashed\n"})
    git(folder, "stash")
    write(folder, {"calc.py": FULL_CODE + "# later\n"})
    git(folder, "commit", "--quiet", "--all", "--message=Later")
    later = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "-a", "v2", "--message=The answer")
    git(folder, "worktree", "add", "--quiet", str(folder.parent / "tree"), "v0")
    write(folder, {"dangling": f"{SECRET} # dangling\n"})
    git(folder, "hash-object", "-w", "dangling")
    (folder / "dangling").unlink()
    git(folder, "reset", "--quiet", "--hard", "v1")
    git(folder, "replace", base, later)
    git(folder, "bundle", "create", "--quiet", ".git/all.bundle", "--all")
    write(folder / ".git", {
        "gc.log": SECRET, "rr-cache/x/postimage": SECRET, "index.old": SECRET,
        "hooks/post-commit": f"# {SECRET}", "info/grafts": f"{base} {old}\n",
        "modules/m/config": SECRET, "COMMIT_EDITMSG": SECRET, "CHERRY_PICK_HEAD": f"{old}\n",
    })  # fmt: skip
    git(folder, "config", "alias.fix", "!cat .git/gc.log")
    names = {"old": old, "blob": blob, "base": base, "later": later}
    return {**names, "old_prefix": old[:8]}


def past_task(**facts: object) -> Task:
    row = task("past", "unittest", test_patch=TEST_PATCH, **facts)
    return Task("past", "Write add().", (GOLD,), row.image, timeout=PATIENCE, metadata=row.metadata)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("past") / "calc"
    return folder, make_past(folder)


@pytest.fixture(scope="module")
def image(past: tuple[Path, dict[str, str]]) -> str:
    """An image that has the repository already, as SWE-bench's have, with all of its past."""
    folder, _ = past
    packed = folder.parent / "image.tar"
    subprocess.run(
        ["tar", "-cf", packed, "--transform=s,^calc,repo,", "-C", folder.parent, "calc"], check=True
    )
    return f"host+{packed}"


def seen_by(past: tuple[Path, dict[str, str]], history: str, image: str | None) -> Iterator[str]:
    """Yield the ways by which an agent sees the older state."""
    folder, names = past
    tasks = Dataset([past_task(repository=str(folder))])
    limits = Limits(timeout=PATIENCE)
    with closing(SweEnv(tasks, history=history, image=image, limits=limits, max_turns=99)) as env:
        env.reset()
        for way, command in WAYS.items():
            for name, text in names.items():
                command = command.replace(f"{{{name}}}", text)
            shown = env.step(f"(cd /repo; {command}) 2>&1; git -C /repo checkout -qf main")[0]
            if "as it was" in shown:
                yield way


@pytest.mark.parametrize("has_it", [False, True], ids=["laid over", "in the image, too"])
def test_no_way_leads_into_the_past(
    past: tuple[Path, dict[str, str]], image: str, has_it: bool
) -> None:
    assert [*seen_by(past, "none", image if has_it else None)] == []


def test_the_ways_lead_there_with_history(past: tuple[Path, dict[str, str]]) -> None:
    """The test above tells something: a repository with its past shows it by these ways."""
    assert len([*seen_by(past, "full", None)]) >= 15


def test_the_past_earns_nothing(past: tuple[Path, dict[str, str]]) -> None:
    tasks = Dataset([past_task(repository=str(past[0]))])
    for history, reward in (("none", 0.0), ("full", 1.0)):
        with closing(SweEnv(tasks, history=history)) as env:
            env.reset()
            env.step("git show HEAD~1:calc.py > /tmp/calc.py && cp /tmp/calc.py calc.py")
            assert env.step("submit")[1] == reward
