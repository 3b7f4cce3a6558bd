"""A harness that plays InterCode's tasks within the process of the framework verifiers.

Each call to the model goes through verifiers' endpoint, which records messages, tokens and
log-probabilities in the rollout's trace. Each tool call of the model is a step of the environment.
"""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import verifiers.v1 as vf

import intercode
from intercode.agents.conversation import CUT_OFF, ObservationClipper
from intercode.agents.strategies import NO_CALL
from intercode.envs.tools import sendable
from intercode.episode import NoAction
from intercode.models.base import tool_as_openai
from intercode.models.response_parsing import arguments
from intercode_integrations.async_env import AsyncEnv
from intercode_integrations.verifiers.tasks import InterCodeTaskData, failures


class InterCodeHarnessConfig(vf.HarnessConfig):
    """The options ``--env.agent.harness.…`` of the harness."""

    observation_limit: int = 10_000
    """Maximum characters of an observation that the model receives."""


class InterCodeHarness(vf.Harness[InterCodeHarnessConfig]):
    """The agent ``tool-calling``, which calls its model through verifiers' endpoint."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    """Whether commands run in the rollout's runtime; here, they run in InterCode's sandboxes."""
    NEEDS_CONTAINER = False

    async def session(
        self, ctx: vf.ModelContext, trace: vf.Trace, *extra_arguments: Any, **keywords: Any
    ) -> vf.HarnessSession:
        """Start the episode. The time limit of the setup applies, not that of the agent.

        Raises:
            UsageError: The task is not from InterCode's taskset.
            vf.SandboxError, vf.TaskError: The episode cannot start; see `failures`.
        """
        data = trace.task.data
        if not isinstance(data, InterCodeTaskData):
            raise intercode.UsageError("InterCode's harness plays only InterCode's tasks")
        with failures():
            trace.state.env = AsyncEnv(await asyncio.to_thread(data.make))
            await trace.state.env.reset(task_id=data.id)
        trace.state.has_begun = True
        return await super().session(ctx, trace, *extra_arguments, **keywords)

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Call the model, and execute the tool calls of its replies, until the episode ends."""
        env = trace.state.env
        tools: Any = [tool_as_openai(tool) for tool in env.tools]
        prompts = zip(("system", "user"), self.resolve_text_prompt(data), strict=True)
        dialogue: Any = [{"role": role, "content": text} for role, text in prompts if text]
        # Certificates take longer to load than an episode takes. Only an encrypted endpoint needs
        # them.
        is_encrypted = endpoint.startswith("https:")
        http_client = openai.DefaultAsyncHttpxClient(
            verify=is_encrypted, trust_env=is_encrypted, timeout=None
        )
        async with openai.AsyncOpenAI(
            base_url=endpoint, api_key=secret, http_client=http_client
        ) as model_client:
            while env.episode.status == "running":
                reply = await model_client.chat.completions.create(
                    model=ctx.model, messages=dialogue, tools=tools
                )
                with failures():
                    dialogue += await self._play_reply(env, reply.choices[0])
        return vf.ProgramResult(0, "", "")

    async def _play_reply(self, env: AsyncEnv, choice: Any) -> list[dict[str, Any]]:
        """Execute the actions of a reply.

        Returns:
            The messages to append to the dialogue: the reply, and the observations.
        """
        messages = [choice.message.model_dump(exclude_none=True)]
        tool_calls = choice.message.tool_calls or ()
        if not tool_calls:
            note = CUT_OFF if choice.finish_reason == "length" else NO_CALL
            messages[0].setdefault("content", "")  # the API refuses a message without content
            observation, *_ = await env.step(NoAction(note))
            return [*messages, {"role": "user", "content": observation}]
        for tool_call in tool_calls:
            if env.episode.status == "running":
                observation, *_ = await env.call(
                    tool_call.function.name, arguments(tool_call.function.arguments)
                )
                clipped_text = (
                    ObservationClipper(self.config.observation_limit)(observation.rstrip("\n"))
                    or "(nothing)"
                )
                tool_message = {
                    "role": "tool",
                    "tool_call_id": tool_call.id,
                    "content": sendable(clipped_text),
                }
                messages.append(tool_message)
        return messages

    async def cleanup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Close the environment and its sandbox, even after a failure."""
        if (env := getattr(trace.state, "env", None)) is not None:
            await env.close()


class InterCodeRolloutsConfig(vf.EnvConfig):
    """The options ``--env.…`` of the rollouts."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The agent, with a runtime on this machine. verifiers' default runtime would rent a remote
    machine, which the harness never uses."""


class InterCodeRollouts(vf.Env[InterCodeRolloutsConfig]):
    """Rollouts with a single agent, which runs on this machine."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play a task with the agent."""
        await agents.agent.run(task)
