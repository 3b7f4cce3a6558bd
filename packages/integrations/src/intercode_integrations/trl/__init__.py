"""Environments and rollouts for TRL's `GRPOTrainer`, of any environment of ours.

`environments` is for ``environment_factory``: TRL leads the episodes, a model calls tools.
`Rollouts` is for ``rollout_func``: we lead them in a vector, a model writes blocks of code, and a
group may have its first turns in common.
"""

from __future__ import annotations

from intercode_integrations.trl.environments import Environments, environments
from intercode_integrations.trl.rollouts import Rollouts, env_reward

__all__ = ["Environments", "Rollouts", "env_reward", "environments"]
