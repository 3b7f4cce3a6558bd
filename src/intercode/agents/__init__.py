"""Who acts: agents, made one for each episode."""
