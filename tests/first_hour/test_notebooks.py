"""The notebooks of the examples, with nothing installed but what they name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from first_hour.conftest import REPOSITORY, install, variables

NOTEBOOKS = sorted((REPOSITORY / "examples/notebooks").glob("*.ipynb"))
INSTALLED = re.compile(r'^\$ pip install "intercode-gym(\[[a-z,]+\])"$', re.MULTILINE)
Execute = Callable[[NotebookNode], NotebookNode]


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: NotebookNode) -> list[Any]:
    """The kinds of a cell's outputs: the streams' names, and the media types of the others."""
    return [output.get("name") or sorted(output.get("data", ())) for output in cell.outputs]


@pytest.fixture(scope="module")
def kernel(place: Path, wheels: dict[str, Path]) -> Path:
    """A virtual environment as each notebook says to make it."""
    (extras,) = {tuple(INSTALLED.findall(read(path).cells[0].source)) for path in NOTEBOOKS}
    (extra,) = extras
    return install(place / "notebooks", str(wheels["sandbox"]), f"{wheels['gym']}{extra}")


@pytest.fixture
def execute(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Runs a notebook from its beginning, by a kernel of that environment, in a new folder."""
    folder = tmp_path / "jupyter/kernels/installed"
    folder.mkdir(parents=True)
    program = [str(kernel / "bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": program, "display_name": "Python 3", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    work = tmp_path / "work"
    work.mkdir()

    def run(notebook: NotebookNode) -> NotebookNode:
        resources = {"metadata": {"path": str(work)}}
        client = NotebookClient(notebook, kernel_name="installed", resources=resources)
        return client.execute(env=variables(kernel, tmp_path))

    return run


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["analyse-a-run", "quick-start"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_outputs(path: Path, execute: Execute) -> None:
    expected_cells, cells = code_cells(read(path)), code_cells(execute(read(path)))
    assert [kinds(cell) for cell in cells] == [kinds(cell) for cell in expected_cells]
    views = [
        output
        for cell in expected_cells
        for output in cell.outputs
        if "intercode-view" in str(output)
    ]
    assert len(views) >= 5
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert all(cell.execution_count for cell in expected_cells)


SET_UP = """
import os, signal, threading, time
import intercode
from intercode.evaluate import Progress, evaluate

assert os.getpgrp() == os.getpid()
tasks = intercode.load_dataset("bash-starter")
env = intercode.make("bash", data=tasks)
env.reset(seed=0)


def interrupt():  # as Jupyter does: the process group of the kernel
    os.killpg(os.getpgrp(), signal.SIGINT)


def interrupt_call():
    while env._calls._holder is None:
        time.sleep(0.01)
    interrupt()
"""
INTERRUPTED_STEP = """
threading.Thread(target=interrupt_call).start()
env.step("while :; do sleep 100; done")
"""
NEXT_EPISODE = """
print(env.episode.status)
env.reset(seed=1)
print(env.step("echo usable")[0])
env
"""
INTERRUPTED_RUN = """
class InterruptingProgress(Progress):
    is_due = True

    def episode(self, episode):
        if self.is_due:
            self.is_due = False
            interrupt()


def run(progress=None):
    make_env = lambda: intercode.make("bash", data=tasks)
    return evaluate(tasks, "oracle", make_env, workers=1, out="run", progress=progress)


print(run(InterruptingProgress()).cut_short)
result = run()
print(result.complete, result.ran < len(tasks))
env.step("submit")
env.close()
"""


def test_an_interrupted_cell_leaves_the_environment_usable(execute: Execute) -> None:
    notebook = new_notebook()  # type: ignore[no-untyped-call]
    for source in (SET_UP, INTERRUPTED_STEP, NEXT_EPISODE, INTERRUPTED_RUN):
        notebook.cells.append(new_code_cell(source))  # type: ignore[no-untyped-call]
    notebook.cells[1].metadata["tags"] = ["raises-exception"]
    _, interrupted, episode, run = execute(notebook).cells
    assert [output.ename for output in interrupted.outputs] == ["KeyboardInterrupt"]
    assert episode.outputs[0].text == "error\nusable\n\n"
    assert "echo usable" in episode.outputs[1].data["text/html"]
    assert [output.text for output in run.outputs if output.output_type == "stream"] == [
        "True\n",
        "True True\n",
    ]
