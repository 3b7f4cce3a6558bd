"""An agent for Harbor that takes recorded actions, each as a command of its own."""

from __future__ import annotations

import shlex
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.models.task.config import TaskConfig
from recorded import played

from intercode_integrations.harbor.writer import ANSWER, task_id

_QUERY = """import sqlite3, sys
found = sqlite3.connect(sys.argv[1]).execute(sys.argv[2])
sys.exit(found.description is None)
"""


class Recorded(BaseAgent):  # type: ignore[misc]
    """Takes the actions that `recorded.played` took in process, and writes its answer."""

    def __init__(self, *args: Any, env: str, **named: Any) -> None:
        super().__init__(*args, **named)
        self._played = {one.task_id: one for one in played(env)}
        self._step = self._query if env == "sql" else self._command

    @staticmethod
    def name() -> str:
        """Return the agent's name."""
        return "recorded"

    def version(self) -> str:
        """Return the version."""
        return "1"

    async def setup(self, environment: Any) -> None:
        """Do nothing: nothing needs to be installed."""

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        """Play the task's actions."""
        file = environment.environment_dir.parent / "task.toml"
        _, task = task_id(TaskConfig.model_validate_toml(file.read_text()).metadata, file)
        for action in self._played[task].actions:
            await self._step(environment, action)

    async def _command(self, environment: Any, action: str) -> None:
        """Run a command; what the last one prints is the answer."""
        await environment.exec(f"{{ {action}\n}} >{ANSWER} 2>&1")

    async def _query(self, environment: Any, action: str) -> None:
        """Keep a statement as the answer, unless it fails or tells nothing while another does."""
        database = "$(ls /data/*.sqlite)"
        done = await environment.exec(
            f'python3 -c {shlex.quote(_QUERY)} "{database}" {shlex.quote(action)}'
        )
        if done.return_code == 0 or not action.startswith("SELECT"):
            await environment.exec(f"printf %s {shlex.quote(action)} >{ANSWER}")
