"""The plain Gymnasium loop: one environment, a scripted policy, a few episodes.

Run it: python examples/gym_loop.py
"""

import gymnasium

import intercode  # registers the environments' ids


def policy(observation: str, turn: int) -> str:
    """Look around once, then submit. Put a model here."""
    return "ls -la" if turn == 0 else "submit"


def main() -> None:
    env = gymnasium.make("intercode-bash-v0", max_turns=5)
    print(f"intercode {intercode.__version__}, {len(env.unwrapped.dataset)} tasks")
    for number in range(3):
        observation, info = env.reset(seed=0 if number == 0 else None)
        reward, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            action = policy(observation, info["turn"])
            observation, reward, terminated, truncated, info = env.step(action)
        print(f"{info['task_id']}: reward {reward:.2f}, success {info['success']}")
    env.close()


if __name__ == "__main__":
    main()
