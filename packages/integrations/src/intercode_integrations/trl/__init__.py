"""Environments and rollouts for TRL's ``GRPOTrainer``, for any InterCode environment.

`environments` is for the trainer's argument ``environment_factory``: TRL runs the episodes, and the
model acts by calling tools. `Rollouts` is for the argument ``rollout_func``: InterCode runs the
episodes in a vector, and the model acts by writing blocks of code. With `Rollouts`, the attempts of
a group may share their first turns.
"""

from __future__ import annotations

from intercode_integrations.trl.environments import Environments, environments
from intercode_integrations.trl.rollouts import Rollouts, env_reward

__all__ = ["Environments", "Rollouts", "env_reward", "environments"]
