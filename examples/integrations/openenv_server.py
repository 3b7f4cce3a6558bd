"""An OpenEnv server with an environment for each session: `python openenv_server.py bash 8000`."""

import sys
import uuid

import openenv.core.env_server as openenv
import uvicorn

import intercode


class Act(openenv.Action):
    action: str


class Seen(openenv.Observation):
    text: str
    truncated: bool = False
    info: dict


class InterCode(openenv.Environment[Act, Seen, openenv.State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    kind = "bash"

    def __init__(self):
        super().__init__()
        # A wire carries neither half characters nor exceptions.
        self.env = intercode.make(self.kind, observations="utf-8", errors="value")
        self.now = openenv.State()

    def reset(self, seed=None, episode_id=None, task_id=None, split=None, index=None, **_):
        text, info = self.env.reset(seed=seed, task_id=task_id, index=index)
        self.now = openenv.State(episode_id=episode_id or str(uuid.uuid4()), **info)
        return Seen(text=text, info=info)

    def step(self, action, timeout_s=None, **_):
        text, reward, terminated, truncated, info = self.env.step(action.action)
        self.now.step_count += 1
        reward = None if "error" in info else reward  # JSON has no NaN
        done = terminated or truncated
        return Seen(text=text, reward=reward, done=done, truncated=truncated, info=info)

    @property
    def state(self):
        return self.now

    def close(self):
        self.env.close()

    def list_splits(self):
        return ["all"]

    def num_tasks(self, split):
        return len(self.env.dataset)

    def get_task(self, split, index):
        return {"id": self.env.dataset[index].task_id, "index": index}

    def get_task_range(self, split, start=None, stop=None):
        return [self.get_task(split, at) for at in range(self.num_tasks(split))[start:stop]]

    list_tasks = get_task_range


if __name__ == "__main__":
    InterCode.kind = sys.argv[1]
    limits = openenv.ConcurrencyConfig(max_concurrent_envs=2, session_timeout=600)
    app = openenv.create_app(InterCode, Act, Seen, env_name="ic", concurrency_config=limits)
    uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
