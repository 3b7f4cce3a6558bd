"""Agents, which act in episodes. A factory makes a fresh agent for each episode."""
