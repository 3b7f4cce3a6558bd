"""The Python environment of the 2023 release, as the class `PythonEnv`."""

from __future__ import annotations

from typing import Any, ClassVar

from intercode.envs.traits import PYTHON
from intercode_paper.compat.base import ACTION_EXEC, REWARD, IntercodeEnv
from intercode_paper.compat.utils import Container
from intercode_paper.python_env import LIMITS, PaperPythonWorkspace, is_error, score, submitted_name


class PythonEnv(IntercodeEnv):
    """A Python environment with one interpreter per episode. ``submit NAME`` submits a function.

    Args:
        image_name: The image.
        **kwargs: As for `IntercodeEnv`, and ``is_agent``. With False (the default), an action that
            begins with ``def`` reads further lines from the terminal, until an empty line.
    """

    name: ClassVar[str] = "ic_python"

    def __init__(self, image_name: str, **kwargs: Any) -> None:
        super().__init__(image_name, **kwargs)
        self.is_agent = bool(kwargs.get("is_agent", False))

    def reset_container(self) -> None:
        """Start a fresh container with a fresh interpreter."""
        self.container.reset()
        self._python = PaperPythonWorkspace(self.container.sandbox)

    def exec_action(self, action: str) -> None:
        """Execute Python code, and set the observation. The value of an expression is printed."""
        if action.strip().startswith("def ") and not self.is_agent:
            action = f"{action}\n{self.input_multiline_function()}"
        self.observation = self._python.step(action)
        self.info[ACTION_EXEC] = not is_error(self.observation)

    def get_reward(self) -> tuple[float, dict[str, Any]]:
        """Run the tests on the submitted function and on gold, and return the reward and `info`.

        A task without tests has the reward 0.

        Raises:
            RewardError: Gold defines no function.
            SandboxError: The sandbox failed.
        """
        self.reward, self.info = 0.0, {REWARD: 0.0}
        if task := (self._task() if self.record.get("tests") else None):
            function_name = submitted_name(self.trajectory[-1][0])
            test_score = score(self._python.trial(task, function_name), function_name)
            self.reward, self.info = test_score.value, dict(test_score.detail)
        return self.reward, self.info

    def input_multiline_function(self) -> str:
        """Read lines from the terminal until an empty line, and return them as one text."""
        return "\n".join(iter(lambda: input(". "), ""))

    def _new_container(self, name: str) -> Container:
        image, sandbox_name, network, environment = self._container_settings
        provider = PYTHON.provider(sandbox_name)
        return Container(name, lambda: provider.start(image, LIMITS, network), environment)
