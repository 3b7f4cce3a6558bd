"""Four environments at once, as a training loop has them; the policy is random.

An environment whose episode has ended is reset by its next step, which ignores the action
(Gymnasium's NextStep mode): that transition must not be learnt from.

Run it: python examples/vector_training.py
"""

import gymnasium
import numpy as np

import intercode  # noqa: F401 - registers the environments' ids

COMMANDS = ("ls -la", "pwd", "cat /etc/os-release", "find . -type f", "submit")


def policy(observation: str, rng: np.random.Generator) -> str:
    """One of a few commands, whatever was observed."""
    return str(rng.choice(COMMANDS))


def main(steps: int = 20) -> None:
    rng = np.random.default_rng(0)
    envs = gymnasium.make_vec("intercode-bash-v0", num_envs=4, max_turns=4)
    observations, _ = envs.reset(seed=0)
    just_ended = np.zeros(envs.num_envs, dtype=bool)
    transitions, rewards_of_ends = 0, []
    for _ in range(steps):
        actions = tuple(policy(text, rng) for text in observations)
        next_observations, rewards, terminated, truncated, _ = envs.step(actions)
        ended = terminated | truncated
        transitions += int((~just_ended).sum())  # (observation, action, reward, next observation)
        rewards_of_ends += list(rewards[ended])
        observations, just_ended = next_observations, ended
    envs.close()
    mean = float(np.mean(rewards_of_ends))
    print(f"{transitions} transitions, {len(rewards_of_ends)} episodes, mean reward {mean:.2f}")


if __name__ == "__main__":
    main()
