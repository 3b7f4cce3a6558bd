"""The shell environments of the 2023 release: `BashEnv`, `CTFEnv` and `SWEEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from intercode.datasets.ic_ctf import task_fields
from intercode.envs.ctf import CtfStage
from intercode.envs.swe import SweStage
from intercode.episode import Episode
from intercode.rewards.swe import SweReward
from intercode.task import Task
from intercode_paper import bash_reward
from intercode_paper.bash_env import gold_runs
from intercode_paper.bash_interpreter import (
    GOLD_HOST,
    LIMITS,
    MALFORMED,
    PaperBashInterpreter,
    resolve,
    run,
    split_words,
)
from intercode_paper.compat.base import ACTION_EXEC, AGENT_OBS, REWARD, IntercodeEnv
from intercode_paper.compat.utils import Container
from intercode_paper.container_images import md5sum, parse_pairs
from intercode_paper.python_env import submitted_name
from intercode_sandbox import SandboxBackend, get_provider
from intercode_sandbox.images import hide
from intercode_sandbox.images.git_repository import FULL_HISTORY

GIT_RESET_SCRIPT = "git reset --hard; git clean -fd;"
GIT_STATUS_SCRIPT = "git status --short;"


class BashEnv(IntercodeEnv):
    """A Bash environment. Each action is a new process; the reward compares with gold's container.

    The folder ``/`` has no git repository. The objects `container` and `container_eval` themselves
    answer the commands `GIT_STATUS_SCRIPT` and `GIT_RESET_SCRIPT`, as if there were a repository.
    """

    name: ClassVar[str] = "ic_bash"

    def __init__(self, image_name: str, **kwargs: Any) -> None:
        super().__init__(image_name, **kwargs)
        self.ctr_name_eval = f"{image_name}_ic_ctr_eval"
        self.container_eval = self._new_container(self.ctr_name_eval)
        self.container_eval.environment = {
            **self._container_settings.environment,
            "HOSTNAME": GOLD_HOST,
        }

    def _new_container(self, name: str) -> Container:
        image, sandbox_name, network, environment = self._container_settings
        prepared_image = gold_runs(get_provider(sandbox_name), image).image

        def reset(container: Container) -> str:
            container.reset()
            return ""

        answers = {
            GIT_STATUS_SCRIPT: lambda container: prepared_image.short_status(container.sandbox),
            GIT_RESET_SCRIPT: reset,
        }
        return Container(name, lambda: prepared_image.start(network), environment, answers)

    def reset_container(self) -> None:
        """Reset the container to its image, and the working directory to ``/``."""
        self.workdir = "/"
        self.container.reset()

    def exec_action(self, action: str) -> None:
        """Execute an action. A ``cd`` changes the working directory of later actions."""
        bash = PaperBashInterpreter(
            self.container.sandbox,
            self.container.environment,
            self.workdir,
            lambda text: split_words(self.clean_cmd(text)),
        )
        execution = bash.execute(action)
        self.observation, self.workdir = execution.output.decode("utf-8"), bash.cwd
        self.info[ACTION_EXEC] = execution.ok

    def get_reward(self) -> tuple[float, dict[str, Any]]:
        """Run gold in `container_eval`, and compare files and last outputs of both containers.

        Returns:
            The reward and `info`.

        Raises:
            SandboxError: A sandbox failed.
        """
        self.container_eval.reset()
        gold = self.gold if isinstance(self.gold, str) else ";".join(self.gold)
        eval_container = self.container_eval
        gold_output = run(
            eval_container.sandbox, split_words(self.clean_cmd(gold)), eval_container.environment
        ).text
        score = bash_reward.score(
            self._outcome(self.container, str(self.observation)),
            self._outcome(eval_container, gold_output),
            self.info.get(ACTION_EXEC, True),
        )
        self.reward = score.value
        self.info.update(score.detail)
        return self.reward, self.info

    def close(self) -> None:
        """Stop both containers. Idempotent."""
        super().close()
        if hasattr(self, "container_eval"):  # subclasses may have no second container
            self.container_eval.stop()

    def clean_cmd(self, action: str) -> str:
        """Return the command line that runs an action."""
        shell = "/bin/sh" if self.image_name == "intercode-bash" else "/bin/bash"
        return f'{shell} -c "{action.strip()}"'

    def parse_status(self, status: str) -> list[tuple[str, str]]:
        """Parse the text of ``git status --short`` into pairs of path and status code."""
        return parse_pairs(status)

    def simplify_path(self, current: str, changed: str) -> str:
        """Return the working directory after ``cd`` from `current`, with the argument `changed`."""
        return resolve(current, changed)

    def _outcome(self, container: Container, output: str) -> bash_reward.ContainerOutcome:
        status = container.exec_run(self.clean_cmd(GIT_STATUS_SCRIPT)).output.decode("utf-8")
        return bash_reward.ContainerOutcome(
            self.parse_status(status),
            output,
            lambda path: md5sum(container.sandbox, path),
            output == MALFORMED,
        )


class CTFEnv(BashEnv):
    """A capture-the-flag environment: Bash, and ``submit FLAG``. The flag's case does not matter.

    The files of an episode's task are in ``/ctf/ID``. They come from the folder ``task_assets``
    beside the data file. As in 2023, `preprocess` must enter ``/ctf/ID`` and run the task's setup,
    which may need ``network=True``.
    """

    name: ClassVar[str] = "ic_ctf"

    def __init__(self, image_name: str, **kwargs: Any) -> None:
        IntercodeEnv.__init__(self, image_name, **kwargs)

    def get_reward(self) -> tuple[float, dict[str, Any]]:
        """Compare the submitted flag with gold, and return the reward (1 or 0) and `info`."""
        flag = submitted_name(self.trajectory[-1][0])
        self.reward = float(flag.lower() == str(self.gold).strip().lower())
        self.info = {AGENT_OBS: flag, REWARD: self.reward}
        return self.reward, self.info

    def clean_cmd(self, action: str) -> str:
        """Return the command line that runs an action."""
        action = action.strip()
        is_unchanged = action.startswith(("python -c", "python3 -c"))
        return action if is_unchanged else f"/bin/bash -c '{action}'"

    def _new_container(self, name: str) -> Container:
        if self.data_path is None:
            return IntercodeEnv._new_container(self, name)
        image, sandbox_name, network, environment = self._container_settings
        folder = Path(self.data_path).absolute().parent
        hide(folder / "task_assets")  # the write-ups in this folder contain flags
        stage = CtfStage(sandbox_name, image, LIMITS, network)

        def start() -> SandboxBackend:
            ctf_fields = task_fields(self.record.fields, folder)
            return stage.open(self._task({**ctf_fields, "released_setup": None}))

        return Container(name, start, environment)


class SWEEnv(BashEnv):
    """An environment of SWE-bench's issues: Bash in the repository of an issue.

    The reward runs the issue's tests on the agent's changes. In the 2023 release, the reward was
    always 0.

    Args:
        image_name: The image.
        **kwargs: As for `IntercodeEnv`, and ``repositories``: the folder or the URL of the
            repositories; the default is GitHub.
    """

    name: ClassVar[str] = "ic_swe"

    def __init__(self, image_name: str, **kwargs: Any) -> None:
        IntercodeEnv.__init__(self, image_name, **kwargs)

    def reset_container(self) -> None:
        """Reset the repository to its base commit, and the working directory to its folder."""
        self.container.reset()
        self.workdir = "/" if self.tool_mode else self._stage.directory(self._issue())

    def get_reward(self) -> tuple[float, dict[str, Any]]:
        """Run the tests of the issue, and return the reward and `info`."""
        swe_reward = SweReward(self._stage.open, self._stage.plan, self._stage.identify)
        issue = self._issue()
        episode = Episode(issue.task_id, issue.query, self.name)
        score = swe_reward(issue, episode, self.container.sandbox)
        self.reward, self.info = score.value, {**score.detail, REWARD: score.value}
        return self.reward, self.info

    def _issue(self) -> Task:
        """Return the row as a task.

        The fields of the object ``tests`` of 2023 become fields of the task, ``patch`` under the
        name ``test_patch``.
        """
        fields = dict(self.record.fields)
        test_fields = fields.pop("tests", None)
        if isinstance(test_fields, Mapping):
            fields |= {
                "test_patch" if name == "patch" else name: value
                for name, value in test_fields.items()
            }
        return self._task(fields)

    def _new_container(self, name: str) -> Container:
        image, sandbox_name, network, environment = self._container_settings
        repositories = self.kwargs.get("repositories", "https://github.com")
        # As in 2023, the repository of an issue contains its full history.
        self._stage = SweStage(
            sandbox_name, image, LIMITS, network, repositories=repositories, history=FULL_HISTORY
        )
        if self.tool_mode:
            return IntercodeEnv._new_container(self, name)
        return Container(name, lambda: self._stage.open(self._issue()), environment)
