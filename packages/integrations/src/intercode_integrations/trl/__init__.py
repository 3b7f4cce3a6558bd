"""Environments and rollouts for TRL's ``GRPOTrainer``, for any InterCode environment.

`environments` is for ``environment_factory``: TRL runs the episodes, and a model calls tools.
`Rollouts` is for ``rollout_func``: InterCode runs the episodes in a vector, and a model writes
blocks of code. There a group may share its first turns.
"""

from __future__ import annotations

from intercode_integrations.trl.environments import Environments, environments
from intercode_integrations.trl.rollouts import Rollouts, env_reward

__all__ = ["Environments", "Rollouts", "env_reward", "environments"]
