"""Rewards, one module each. Grading runs outside the reach of the agent's programs."""
