"""How well: one module for each reward; they run where the agent cannot reach."""
