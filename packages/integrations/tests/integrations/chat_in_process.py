"""verifiers' harness ``null`` in process: that one has itself installed from the network by uv."""

from __future__ import annotations

from typing import Any

import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire


class Chat(vf.Harness[vf.HarnessConfig]):
    """Asks for one reply to the talk so far."""

    EXECUTES_CODE = NEEDS_CONTAINER = False
    SUPPORTS_RESUME = True

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
        talk: Any = [message_to_wire(one) for one in data.prompt]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as model:
            await model.chat.completions.create(model=ctx.model, messages=talk)
        return vf.ProgramResult(0, "", "")


__all__ = ["Chat"]
