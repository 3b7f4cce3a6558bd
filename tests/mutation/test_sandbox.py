"""The native sandbox: each defence holds, and is missed."""

from mutation import probes, probes_caller, probes_limits, probes_network, probes_programs
from mutation.checks import checks_of

test_it_holds, test_it_is_missed = checks_of(
    probes, probes_caller, probes_limits, probes_network, probes_programs
)
