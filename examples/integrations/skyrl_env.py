"""Environments for SkyRL: `skyrl_gym.register("intercode", "skyrl_env:InterCode")`.

A row of the training data has `env_class: intercode` and, beside it, `env` and `task_id`. The
prompt is ours: it tells the model to put each action into a block of code.
"""

import re

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

import intercode

BLOCK = re.compile(r"^(```+)\w*\n(.*?)^\1 *$", re.DOTALL | re.MULTILINE)


class InterCode(BaseTextEnv):
    """One episode. A failure of ours raises, and is not a reward of 0."""

    def __init__(self, env_config=None, extras=None):
        super().__init__()
        extras = extras or {}
        self.task_id, self.max_turns = extras["task_id"], extras.get("max_turns", 10)
        name = extras.get("env", "bash")
        self.env = intercode.make(name, max_turns=self.max_turns, observations="utf-8")

    def init(self, prompt):
        _, info = self.env.reset(options={"task_id": self.task_id})
        return self.env.unwrapped.messages(), info

    def step(self, action):
        self.turns += 1
        found = BLOCK.search(action)
        taken = (found[2] if found else action).strip()
        text, reward, terminated, truncated, info = self.env.step(taken)
        done = terminated or truncated
        seen = [] if done else [{"role": "user", "content": text}]
        return BaseTextEnvStepOutput(observations=seen, reward=reward, done=done, metadata=info)

    def get_metrics(self):
        episode = self.env.unwrapped.episode
        success = {} if episode.reward is None else {"success": float(episode.success)}
        return {**success, "turns": self.turns}

    def close(self):
        self.env.close()
