"""Tasks of Bash in Inspect AI, in our sandboxes: `inspect eval inspect_task.py --model MODEL`."""

import asyncio
from pathlib import PurePosixPath

from inspect_ai import Task, agent, scorer, task, tool, util
from inspect_ai.dataset import Sample

import intercode

ENV = intercode.make("bash", limits={"output": "10M", "timeout": 600})
TASKS = ENV.dataset.filter(lambda task: "files" in task.tags)
SCORES = intercode.AsyncEnv(ENV)  # one at a time


@util.sandboxenv(name="intercode")
class InterCode(util.SandboxEnvironment):
    def __init__(self, sandbox):
        super().__init__()
        self.box = intercode.AsyncSandbox(sandbox)

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        place = await asyncio.to_thread(ENV.stage.open, TASKS[metadata["task_id"]])
        return {"default": cls(place)}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        await environments["default"].box.close()

    async def exec(self, cmd, input=None, timeout=None, timeout_retry=0, concurrency=0, **how):
        stdin = input.encode() if isinstance(input, str) else input
        try:
            done = await self.box.exec(cmd, stdin=stdin, timeout=timeout, **how)
        except LookupError as error:  # there is no such user
            raise util.SandboxUserUnsupportedError(str(error)) from error
        out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        if done.timed_out:
            raise TimeoutError
        if done.exit_code == 126:  # as shells count
            raise PermissionError(err)
        return util.ExecResult(done.ok, done.exit_code, out, err)

    def path(self, file):
        return PurePosixPath(self.box.sandbox.cwd, file)

    async def write_file(self, file, contents):
        data = contents.encode() if isinstance(contents, str) else contents
        await self.box.write_file(self.path(file), data)

    async def read_file(self, file, text=True):
        limits = util.SandboxEnvironmentLimits
        try:
            data = await self.box.read_file(self.path(file), limits.MAX_READ_FILE_SIZE)
        except intercode.OutputLimitError as error:
            raise util.OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data


@scorer.scorer(metrics=[scorer.mean()])
def reward():
    async def score(state, target):
        place, answer = util.sandbox().as_type(InterCode).box, state.output.completion
        judged = await SCORES.score(TASKS[state.sample_id], place, output=answer)
        return scorer.Score(value=judged.value, metadata=dict(judged.parts))

    return score


@task
def bash_tasks():
    rows = [{"id": t.task_id, "input": t.query, "metadata": {"task_id": t.task_id}} for t in TASKS]
    samples = [Sample(**row, sandbox="intercode") for row in rows]
    return Task(samples, solver=agent.react(tools=[tool.bash(timeout=30)]), scorer=reward())
