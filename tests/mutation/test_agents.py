"""Agents from outside, their gateway and skills: each defence holds, and is missed."""

from mutation import probes_agents, probes_gateway, probes_skills
from mutation.checks import checks_of

test_it_holds, test_it_is_missed = checks_of(probes_agents, probes_gateway, probes_skills)
