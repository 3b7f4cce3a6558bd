"""A resources server of NeMo Gym, with an environment for each session.

A row of its data has a `task_id` beside `responses_create_params`. `/bash` is the model's tool.
An episode that failed has no reward: `/verify` fails, too.
"""

from fastapi import HTTPException, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import PrivateAttr

import intercode


class Seed(BaseSeedSessionRequest):
    task_id: str


class InterCode(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    _envs: dict = PrivateAttr(default_factory=dict)

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/bash")(self.bash)
        return app

    def env(self, request):
        if (env := self._envs.get(request.session[SESSION_ID_KEY])) is None:
            raise HTTPException(409, "this session has no episode: POST /seed_session first")
        return env

    async def seed_session(self, request: Request, body: Seed) -> BaseSeedSessionResponse:
        if (session := request.session[SESSION_ID_KEY]) not in self._envs:
            self._envs[session] = intercode.AsyncEnv(intercode.make("bash", observations="utf-8"))
        await self._envs[session].reset(task_id=body.task_id)
        return BaseSeedSessionResponse()

    async def bash(self, request: Request, body: dict) -> dict:
        if (env := self.env(request)).episode.status != "running":
            return {"output": "the episode has ended"}
        return {"output": (await env.call("bash", body))[0]}

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        async with self.env(request) as env:
            del self._envs[request.session[SESSION_ID_KEY]]
            if env.episode.status == "running":
                await env.step("submit")
            return BaseVerifyResponse(**body.model_dump(), reward=env.episode.reward)


if __name__ == "__main__":
    InterCode.run_webserver()
