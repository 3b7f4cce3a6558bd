"""Python in a verification: the agent's modules are found, and take the place of no other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from intercode.rewards.verification import _program_archive
from intercode.task import Task

from .conftest import Grade

CALC = "echo 'def add(a, b): return a + b' > calc.py"
IMPORT = 'import json, calc; assert calc.add(2, 3) == json.loads("5")'
CHECK = f"mkdir c; echo '{IMPORT}' > c/check.py; echo '{IMPORT}' > check.py; "
UNIT = (
    "import unittest, calc\\nclass T(unittest.TestCase):\\n"
    "  def test(self): self.assertEqual(calc.add(1, 1), 2)\\n"
)
POOL = (
    'import multiprocessing as m, calc\\nif __name__ == "__main__":\\n'
    '  m.set_start_method("spawn")\\n'
    "  with m.Pool(2) as p: assert p.starmap(calc.add, [(1, 2)]) == [3]\\n"
)
IMPORTS = {
    "-c": f"python3 -c '{IMPORT}'",
    "-c, elsewhere": f"mkdir x; cp calc.py x; rm calc.py; cd x; python3 -c '{IMPORT}'",
    "input": f"echo '{IMPORT}' | python3",
    "a program": "cd /; python3 /root/check.py",
    "a program by a link": "mkdir x; ln -s /root/check.py x/y; cd /; python3 root/x/y",
    "a program of its own": "chmod 755 check.py; sed -i '1i#!/usr/bin/env python3' check.py; cd /;"
    " /root/check.py",
    "-m": "python3 -m calc && python3 -m check",
    "-m, of a package": "mkdir p; mv check.py p; python3 -m p.check",
    "unittest": f"printf '{UNIT}' > test_calc.py; python3 -m unittest -q",
    "unittest, below": f"mkdir t; printf '{UNIT}' > t/test_it.py; python3 -m unittest discover t",
    "PYTHONPATH": f"mkdir x; mv calc.py x; PYTHONPATH=/root/x python3 -c '{IMPORT}'",
    "sys.path": f"cd /; python3 -c 'import sys; sys.path.insert(0, \"/root\"); {IMPORT}'",
    "a package": "mkdir p; mv calc.py p; python3 -c 'import p.calc as c; assert c.add(2, 3) == 5'",
    "its own child": 'python3 -c \'import subprocess as s, sys; s.run([sys.executable, "-c",'
    f" sys.argv[1]], check=True)' '{IMPORT}'",
    "spawned": f"printf '{POOL}' > pool.py; python3 pool.py",
    "venv": f"python3 -m venv --without-pip v && v/bin/python -c '{IMPORT}'",
}


@pytest.mark.parametrize("way", IMPORTS)
def test_a_module_that_was_asked_for_is_found(grade: Grade, way: str) -> None:
    task = Task("t", "q", setup=CHECK, verification=IMPORTS[way])
    assert grade(task).value == 0.0
    score = grade(task, CALC)
    assert score.value == 1.0, score.detail
    assert grade(task, CALC.replace("+", "-")).value == 0.0


OUT = "import os; os._exit(0)"
BASE = ["encodings", "codecs", "io", "abc", "site", "os", "stat", "zipimport", "importlib", "re"]
MODULES = {
    "json.py": f"echo '{OUT}' > json.py; cp json.py c",
    "json": f"mkdir json c/json; echo '{OUT}' > json/__init__.py; cp json/__init__.py c/json",
    "decoder": f"mkdir json; echo '{OUT}' > json/decoder.py",
    "customize": f"for f in site user; do echo '{OUT}' | tee c/${{f}}customize.py"
    f" > ${{f}}customize.py; done",
    "user site": "d=$(python3 -m site --user-site); mkdir -p $d;"
    f" for f in usercustomize.py sitecustomize.py x.pth json.py; do echo '{OUT}' > $d/$f; done",
    "pth": f"echo '{OUT}' > x.pth",
    "Python's own": f"for m in {' '.join(BASE)}; do echo '{OUT}' > $m.py; done; cp *.py c",
    "what there is not": "mkdir -p org/python c; for m in msvcrt winreg _winapi nt _scproxy java"
    " org/__init__ org/python/__init__ org/python/core; do"
    f" echo '{OUT}' > $m.py; done; cp -r org *.py c",
    "runpy": f"for m in runpy pkgutil __main__; do echo '{OUT}' > $m.py; done",
    "lib": f"mkdir -p lib/python3; echo '{OUT}' > lib/python3/site.py; echo home=/ > pyvenv.cfg",
}
LOOK = 'import copy, json, subprocess, unittest, uuid; assert json.load(open("/root/answer")) == 3'
CHECKS = {
    "-c": f"python3 -c '{LOOK}'",
    "input": f"echo '{LOOK}' | python3",
    "a program": "python3 /root/c/look.py",
    "-m": "python3 -m json.tool answer",
    "-I": f"python3 -I -c '{LOOK}'",
    "in front": f"python3 -c 'import sys; sys.path.insert(0, \"/root\"); {LOOK}'",
}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_takes_the_place_of_another(grade: Grade, module: str) -> None:
    setup = f"mkdir c; echo '{LOOK}' > c/look.py"
    any_says_yes = Task("t", "q", setup=setup, verification=" || ".join(CHECKS.values()))
    score = grade(any_says_yes, MODULES[module])
    assert score.value == 0.0
    assert score.detail["output"].count("No such file") == len(CHECKS)
    all_say_yes = Task("t", "q", setup=setup, verification=" && ".join(CHECKS.values()))
    score = grade(all_say_yes, MODULES[module], "echo 3 > answer")
    assert score.value == 1.0, score.detail


PLUGIN = (
    "mkdir x-1.dist-info; printf 'Name: x\\nVersion: 1\\n' > x-1.dist-info/METADATA;"
    " printf '[pytest11]\\nx = plug\\n' > x-1.dist-info/entry_points.txt;"
    f" echo '{OUT}' > plug.py"
)
INSTALLED = (
    "from importlib.metadata import distributions as d; assert 'x' in [o.name for o in d({})]"
)


def test_nothing_of_the_agents_is_installed(grade_anywhere: Grade) -> None:
    for place, value in (("", 0.0), ('path=["/root"]', 1.0)):
        program = INSTALLED.replace("'", '"').format(place)
        assert (
            grade_anywhere(Task("t", "q", verification=f"python3 -c '{program}'"), PLUGIN).value
            == value
        )
    has = "/usr/bin/python3 -m pytest --version"
    if grade_anywhere(Task("t", "q", verification=has)).value:
        setup = "mkdir /opt/t; echo 'def test(): assert open(\"/root/answer\")' > /opt/t/test_it.py"
        task = Task("t", "q", setup=setup, verification="/usr/bin/python3 -m pytest -q /opt/t")
        assert grade_anywhere(task, PLUGIN).value == 0.0
        assert grade_anywhere(task, f"{PLUGIN}; touch answer").value == 1.0


PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_any_version_of_python(python: Path, tmp_path: Path) -> None:
    """Outside of a sandbox, which has none but one."""
    archive = tmp_path / "archive"
    archive.write_bytes(_program_archive())
    place = tmp_path / "place"
    place.mkdir()
    (place / "calc.py").write_text("number = 3")
    (place / "check.py").write_text(
        said := "import calc, copy, json, subprocess; print(json.dumps(calc.number))"
    )
    for name in ("json", "sitecustomize", "usercustomize", "msvcrt", "org"):
        (place / f"{name}.py").write_text(OUT)
    env = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": f"{archive}:{tmp_path}/x"}
    for arguments in (["-c", said], ["-m", "check"], ["check.py"], [str(place / "check.py")]):
        done = subprocess.run(
            [python, *arguments], cwd=place, env=env, stdout=subprocess.PIPE, check=True
        )
        assert done.stdout == b"3\n", arguments


def test_a_customization_of_the_image_still_counts(tmp_path: Path) -> None:
    subprocess.run(
        ["/usr/bin/env", "python3", "-m", "venv", "--without-pip", "v"], cwd=tmp_path, check=True
    )
    [site] = tmp_path.glob("v/lib/python*/site-packages")
    (site / "sitecustomize.py").write_text("import builtins; builtins.made = 1")
    # A namespace that both have: of each what only it has.
    for place, name in ((site, "one"), (tmp_path, "one"), (tmp_path, "two")):
        (place / "space").mkdir(exist_ok=True)
        (place / "space" / f"{name}.py").write_text(f"number = {int(place == site)}")
    (tmp_path / "archive").write_bytes(_program_archive())
    said = "import space.one as one, space.two as two; print(one.number, two.number)"
    env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{tmp_path}/archive"}
    python = [tmp_path / "v/bin/python", "-c"]
    done = subprocess.run([*python, said], cwd=tmp_path, env=env, stdout=subprocess.PIPE)
    assert done.stdout == b"1 0\n"
    # Debian's Python has another one, which comes first.
    said = "import builtins; print(getattr(builtins, 'made', 0))"
    done = subprocess.run([*python, said], env=env, stdout=subprocess.PIPE)
    assert done.stdout == subprocess.check_output([*python, said], env={})
