"""Inspect AI: its own checks of a sandbox, our tasks in its evaluations, its tasks in our runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import pytest_asyncio
from inspect_ai import eval, eval_async
from inspect_ai.agent import AgentState, sandbox_agent_bridge
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ChatMessage, Model, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxUnavailableError, SandboxUserUnsupportedError, sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from recorded import played

import intercode
from intercode.cli.main import main
from intercode.envs.tools import read_call
from intercode.envs.traits import find_traits
from intercode_integrations.inspect import InterCodeSandbox, SandboxConfig, TaskSandbox, sql
from intercode_integrations.inspect.tasks import TaskConfig
from waiting import PATIENCE

USERS = "test_exec_as_user"
"""The check that adds a user by `adduser`: for this root needs capabilities, and the image PAM."""
PAM = """FROM host
RUN mkdir -p /etc/pam.d /etc/skel && for kind in auth account password session; \\
    do echo "$kind sufficient pam_permit.so"; done >/etc/pam.d/other
"""
AGENT = """
import json, socket, subprocess, sys, time, urllib.request

while socket.socket().connect_ex(("localhost", 13131)):  # as agents do, until there is a proxy
    time.sleep(0.05)
messages = [{"role": "user", "content": sys.argv[1]}]
for _ in range(2):
    body = json.dumps({"model": "inspect", "messages": messages}).encode()
    request = urllib.request.Request(
        "http://localhost:13131/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    done = subprocess.run(["/bin/bash", "-c", said], capture_output=True, text=True)
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": done.stdout}]
"""
"""An agent's program in the sandbox, which runs what the model says."""


@pytest_asyncio.fixture
async def sandbox_env(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[InterCodeSandbox]:
    """A sandbox for Inspect's 44 checks."""
    config = None
    if request.node.originalname == USERS:
        (tmp_path / "Dockerfile").write_text(PAM)
        capabilities = "chown,setuid,setgid,fowner,fsetid"
        config = SandboxConfig(
            image=str(tmp_path / "Dockerfile"), limits={"capabilities": capabilities}
        )
    made = await InterCodeSandbox.sample_init("checks", config, {})
    yield made["default"]
    await InterCodeSandbox.sample_cleanup("checks", None, made, False)


def model(said: Callable[[list[ChatMessage]], ModelOutput]) -> Model:
    """A model that speaks by a script."""

    def reply(messages: list[ChatMessage], *_: Any) -> ModelOutput:
        usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else counted online
        return said(messages).model_copy(update={"usage": usage})

    return get_model("mockllm/model", custom_outputs=reply, memoize=False)


Calls = dict[str, list[tuple[str, Any]]]


def player(tasks: intercode.Dataset, calls: Calls) -> Model:
    """A model that calls tools, by the task that it is told."""
    queries = {task.query: task.task_id for task in tasks}

    def said(messages: list[ChatMessage]) -> ModelOutput:
        asked = next(message.text for message in messages if message.role == "user")
        [task_id] = [found for query, found in queries.items() if query.strip() in asked]
        turn = sum(message.role == "assistant" for message in messages)
        return ModelOutput.for_tool_call("mockllm/model", *calls[task_id][turn])

    return model(said)


SILENT = model(lambda messages: ModelOutput.from_content("mockllm/model", "Well."))


def evaluated(task: Any, of: Model, folder: Path, **options: Any) -> EvalLog:
    [log] = eval(task, model=of, log_dir=str(folder), display="none", **options)
    return log


def rewards(log: EvalLog) -> dict[Any, Any]:
    assert log.status == "success", log.error
    return {sample.id: sample.scores["reward"].value for sample in log.samples or []}


@pytest.mark.parametrize(
    ("name", "tools"), [("bash", "intercode"), ("bash", "inspect"), ("sql", "intercode")]
)
def test_recorded_actions_earn_the_same(name: str, tools: str, tmp_path: Path) -> None:
    traits = find_traits(name)
    calls: Calls = {}
    for run in played(name):
        answer = {"answer": run.observations[-1]} if tools == "inspect" else {}
        calls[run.task_id] = [
            *(read_call(action, traits) for action in run.actions),
            ("submit", answer),
        ]
    by = player(intercode.load_dataset(name), calls)
    log = evaluated(f"intercode/{name}", by, tmp_path, task_args={"tools": tools})
    assert rewards(log) == {run.task_id: run.reward for run in played(name)}


@pytest.mark.parametrize("name", ["ctf", "python", "swe"])
def test_other_environments(name: str, tmp_path: Path) -> None:
    secret = {"secret": "s"} if name == "ctf" else {}
    env, traits = intercode.make(name, **secret), find_traits(name)
    calls: Calls = {
        task.task_id: [read_call(action, traits) for action in env.solution(task)]
        for task in list(env.dataset)[:2]
    }
    by = player(env.dataset, calls)
    log = evaluated(f"intercode/{name}", by, tmp_path, task_args=secret, sample_id=[*calls])
    assert rewards(log) == dict.fromkeys(calls, 1.0)


def test_a_benchmark_folder_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that has not imported the adapter."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mazes", "--env", "bash"]) == 0
    script = """
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

output = ModelOutput.for_tool_call("mockllm/model", "submit", {})
output.usage = ModelUsage()
model = get_model("mockllm/model", custom_outputs=[output])
task = "intercode/benchmark"
options = {"env": "mazes", "max_turns": 3}
[log] = eval(task, task_args=options, model=model, limit=1, log_dir="logs", display="none")
assert log.status == "success", log.error
[sample] = log.samples
print("and you have 3" in sample.messages[0].text, sample.scores["reward"].value)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "True 0.0\n", done.stderr


def test_a_reply_without_a_call_is_a_turn(tmp_path: Path) -> None:
    log = evaluated("intercode/bash", SILENT, tmp_path, task_args={"max_turns": 2}, limit=1)
    [sample] = log.samples or []
    assert isinstance(read_eval_log(log.location).eval.sandbox.config, TaskConfig)  # for a retry
    assert [message.role for message in sample.messages] == [
        "system",
        *["user", "assistant"] * 2,
        "user",
    ]
    assert rewards(log)[sample.id] < 1.0


@solver
def agent_inside() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async with sandbox_agent_bridge(AgentState(messages=[])) as bridge:
            done = await sandbox().exec(
                ["python3", "-c", AGENT, state.input_text], timeout=int(PATIENCE)
            )
            assert done.success, done.stderr
        state.output = bridge.state.output
        return state

    return solve


def test_an_agent_inside_asks_inspects_model(tmp_path: Path) -> None:
    task = next(one for one in intercode.load_dataset("bash") if "files" in one.tags)

    def said(messages: list[ChatMessage]) -> ModelOutput:
        first = len(messages) == 1
        return ModelOutput.from_content("mockllm/model", task.gold[0] if first else "true")

    log = evaluated(
        "intercode/bash",
        model(said),
        tmp_path,
        task_args={"tools": "inspect"},
        solver=agent_inside(),
        sample_id=task.task_id,
    )
    assert rewards(log) == {task.task_id: 1.0}
    assert log.stats.model_usage["mockllm/model"].total_tokens == 4


@solver
def losing(places: list[Any]) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        place = sandbox().as_type(TaskSandbox)
        places.append(place)
        place.box.close()  # as if it had been killed from outside
        with pytest.raises(SandboxUnavailableError):
            await sandbox().exec(["true"])
        return state

    return solve


@pytest.mark.parametrize("tools", ["intercode", "inspect"])
def test_a_lost_sandbox_is_an_error_of_the_sample(tools: str, tmp_path: Path) -> None:
    log = evaluated(
        "intercode/bash",
        SILENT,
        tmp_path,
        task_args={"tools": tools},
        solver=losing([]),
        limit=2,
        fail_on_error=False,
    )
    for sample in log.samples or []:
        assert sample.error is not None and "Error" in sample.error.message
        assert not sample.scores
    assert log.results is None


REMOVALS = {
    "programs": "rm -rf /bin /lib64",  # which are links, and the loader's place
    "privileges": "chmod 000 /",
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_an_agent_that_removes_its_shell_has_ended_the_sample(removal: str, tmp_path: Path) -> None:
    """The next command ends it: with a score, and without an error."""
    actions: list[str] = []

    def said(messages: list[ChatMessage]) -> ModelOutput:
        actions.append("ls" if actions else REMOVALS[removal])
        call = read_call(actions[-1], find_traits("bash"))
        return ModelOutput.for_tool_call("mockllm/model", *call)

    options = {"task_args": {"tools": "inspect"}, "limit": 1, "message_limit": 20}
    log = evaluated("intercode/bash", model(said), tmp_path, **options)
    [sample] = log.samples or []
    assert (log.status, sample.error, len(actions)) == ("success", None, 2)
    assert sample.scores is not None and sample.scores["reward"].value < 1.0
    assert sample.limit is not None
    assert str(sample.limit.reason).startswith("ended by the agent: there is no shell left")


async def test_a_program_that_is_not_there_ends_nothing() -> None:
    made = await InterCodeSandbox.sample_init("checks", None, {})
    done = await made["default"].exec(["no-such-program"])
    assert (done.returncode, (await made["default"].exec(["true"])).success) == (127, True)
    await InterCodeSandbox.sample_cleanup("checks", None, made, False)


def test_a_scorer_works_where_no_shell_is_left(tmp_path: Path) -> None:
    """It learns from the result that no shell starts, as in a sandbox whose image has none."""
    (tmp_path / "mine.py").write_text(
        """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def remove():
    async def solve(state, generate):
        await sandbox().exec(["bash", "-c", "rm -rf /bin /lib64"])
        return state
    return solve

@scorer(metrics=[accuracy()])
def looks():
    async def score(state, target):
        done = await sandbox().exec(["bash", "-c", "test -e /made"])
        return Score(value="I", explanation=str(done.returncode))
    return score

@task
def mine():
    return Task([Sample("?")], solver=remove(), scorer=looks(), sandbox="intercode")
"""
    )
    [sample] = evaluated(f"{tmp_path}/mine.py@mine", SILENT, tmp_path / "logs").samples or []
    assert sample.error is None and sample.limit is None
    assert sample.scores["looks"].explanation == "127"


async def test_an_interrupted_evaluation_leaves_nothing(tmp_path: Path) -> None:
    places: list[TaskSandbox] = []
    started = anyio.Event()

    @solver
    def endless() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            places.append(sandbox().as_type(TaskSandbox))
            started.set()
            await sandbox().exec(["sleep", "infinity"])
            return state

        return solve

    async with anyio.create_task_group() as group:

        async def run() -> None:
            await eval_async(
                "intercode/bash",
                model=SILENT,
                solver=endless(),
                limit=1,
                log_dir=str(tmp_path),
            )

        group.start_soon(run)
        await started.wait()
        group.cancel_scope.cancel()
    [place] = places
    with pytest.raises(intercode.SandboxClosedError):
        place.box.processes()


def test_a_configuration_beside_the_task(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN echo ours >/made\n")
    settings = 'image = "Dockerfile"\nlimits = {memory = "64M"}\n'
    (tmp_path / "intercode-sandbox.toml").write_text(settings)
    (tmp_path / "mine.py").write_text(
        """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def look():
    async def solve(state, generate):
        made = await sandbox().read_file("/made")
        state.output.completion = f"{made.strip()} {sandbox()._sandbox.box.limits.memory}"
        return state
    return solve

@task
def mine():
    return Task([Sample("?", target="ours 67108864")], solver=look(), scorer=includes(),
                sandbox="intercode")
"""
    )
    log = evaluated(f"{tmp_path}/mine.py@mine", SILENT, tmp_path / "logs")
    [sample] = log.samples or []
    assert sample.error is None and sample.scores["includes"].value == "C"
    (tmp_path / "intercode-sandbox.toml").write_text('memory = "64M"')
    with pytest.raises(intercode.UsageError, match="memory"):
        SandboxConfig.parse(str(tmp_path / "intercode-sandbox.toml"))


async def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(intercode.UsageError, match="sql"):
        sql(tools="inspect")
    with pytest.raises(intercode.UsageError, match="TaskConfig"):
        SandboxConfig.parse(TaskConfig(env="bash", tools="inspect"))
    made = await InterCodeSandbox.sample_init("checks", None, {})
    with pytest.raises(NotImplementedError):
        await made["default"].connection()
    with pytest.raises(SandboxUserUnsupportedError):
        await made["default"].exec(["true"], user="no-such-user")
    await InterCodeSandbox.sample_cleanup("checks", None, made, False)
    container = InterCodeSandbox(SimpleNamespace(container=SimpleNamespace(id="c1")))
    assert (
        await container.connection(user="me")
    ).command == "docker exec -it --user me c1 /bin/bash"


async def test_what_an_agent_can_cause_is_told() -> None:
    """By errors that Inspect shows to the model."""
    made = await InterCodeSandbox.sample_init("checks", SandboxConfig(limits={"disk": "1M"}), {})
    [place] = made.values()
    with pytest.raises(ValueError, match="embedded null byte"):
        await place.exec(["echo", "a\0b"])
    with pytest.raises(TimeoutError) as late:
        await place.exec(
            ["sh", "-c", "echo begun; sleep infinity"], timeout=1
        )  # allow limit: endless
    assert late.value.truncated_output == "begun\n"  # type: ignore[attr-defined]
    assert (await place.exec(["no-such-program"])).returncode == 127
    async with anyio.create_task_group() as group:  # one waits for the other
        group.start_soon(place.exec, ["sh", "-c", "mkfifo fifo && cat fifo"])
        assert (await place.exec(["sh", "-c", "until [ -p fifo ]; do :; done; echo >fifo"])).success
    await InterCodeSandbox.sample_cleanup("checks", None, made, True)


THEIRS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes, mean, scorer, Score
from inspect_ai.util import sandbox

@scorer(metrics=[mean()])
def copied():
    async def score(state, target):
        made = await sandbox().read_file("made")
        right = made.strip() == target.text and state.output.completion == "done"
        return Score(value="C" if right else "I")
    return score

@task
def files():
    samples = [Sample(f"Copy {name}", id=name, target=name, files={name: f"{name}\\n"},
                      setup="mkdir place && touch made") for name in ("red", "blue")]
    return Task(samples, scorer=copied(), sandbox="docker")

@scorer(metrics=[mean()])
def judged():
    async def score(state, target):
        given = state.output.completion
        return Score(value=float("nan") if given == "nan" else given)
    return score

@task
def values():
    return Task([Sample("?", id="one")], scorer=judged(), sandbox="docker")

@task
def choices():
    return Task([Sample("?", choices=["a", "b"], target="A")], scorer=includes())
"""


def test_their_task_in_our_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    address = f"inspect:{tmp_path}/theirs.py@files"
    env = intercode.make(address)
    query, _ = env.reset(options={"task_id": "red"})
    assert query == "Copy red"
    assert env.step("ls")[0] == "made\nplace\nred\n"
    env.step("cp red made")
    assert env.step("submit done")[1] == 1.0
    env.reset(options={"task_id": "blue"})
    assert env.step("submit done")[1] == 0.0
    env.close()
    out = tmp_path / "run"
    asked = ["run", address, "--agent", "random", "--workers", "2", "--json", "--out", str(out)]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)
    for name in ("choices", "nothing"):
        with pytest.raises((intercode.TaskError, intercode.UsageError)):
            intercode.make(f"inspect:{tmp_path}/theirs.py@{name}")


def test_a_score_that_is_no_number_is_no_reward_of_0(tmp_path: Path) -> None:
    """Inspect reads 0 in a text that means nothing to it, such as a judge's apology."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    with closing(intercode.make(f"inspect:{tmp_path}/theirs.py@values")) as env:
        numbers = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "No": 0.0, "true": 1.0, "0": 0.0}
        for value, number in {**numbers, "0.25": 0.25}.items():
            env.reset()
            assert env.step(f"submit {value}")[1] == number, value
        for value in ("nan", "the judge is overloaded", "inf"):
            env.reset()
            with pytest.raises(intercode.RewardError, match="not one value"):
                env.step(f"submit {value}")
