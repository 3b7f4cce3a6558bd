"""Python on the command line: the bundled tasks, a Python of the image's, blocks at the prompt."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Run, write


def test_run_with_the_images_own_python(tmp_path: Path, cli: Run) -> None:
    run = ("run", "python", "--limit", "3", "--json", "--quiet", "--out")
    for name, options in ("ours", ()), ("theirs", ("--python", "python3")):
        done = cli(*run, str(tmp_path / name), *options)
        assert json.loads(done.stdout)["statistics"]["successes"] == 3
    ours, theirs = ((tmp_path / name / "run.json").read_text() for name in ("ours", "theirs"))
    assert '"python": "python3"' in theirs  # another run than the first one
    assert '"python": "python3"' not in ours
    assert "  >>> " in cli("show", str(tmp_path / "ours")).stdout


def test_a_python_that_is_not_there(tmp_path: Path, cli: Run) -> None:
    done = cli("run", "python", "--python", "python0", "--out", str(tmp_path / "run"), code=1)
    assert "cannot run 'python0'" in done.stderr
    assert not (tmp_path / "run").exists()  # nothing was tried
    done = cli("run", "bash", "--python", "python3", code=2)
    assert "environment 'bash', protocol 'default', takes no --python" in done.stderr


def test_building_an_image_that_takes_long_is_told_of(tmp_path: Path, cli: Run) -> None:
    script = tmp_path / "fs.sh"
    tasks = [{"task_id": "t", "query": "q", "gold": "x = 1", "tests": ["assert x == 1"]}]
    data = str(write(tmp_path / "tasks.json", tasks))
    arguments = ("run", "python", "--data", data, "--image", f"host+{script}")
    for name, quiet, seconds in (("loud", (), 1.1), ("quiet", ("--quiet",), 1.1)):
        script.write_text(f"sleep {seconds}; echo {tmp_path} > /srv/note\n")
        done = cli(*arguments, *quiet, env={"INTERCODE_CACHE": str(tmp_path / name)})
        assert ("building host+fs.sh" in done.stderr) == (name == "loud")


def test_play(cli: Run) -> None:
    typed = """\
def f(x):
    return 'eleven' * x

f(2)
[20,
 22 + 20]
x = 'in\\
 two'; x
def g(:
submit
"""
    told = cli("play", "python", "--limit", "1", stdin=typed).stdout
    for expected in "'eleveneleven'", "[20, 42]", "'in two'", "SyntaxError", "submitted: reward 0":
        assert expected in told
    assert "Traceback" not in told
