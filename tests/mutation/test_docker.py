"""The Docker sandbox: each defence holds, and is missed."""

from mutation import probes_docker
from mutation.checks import checks_of

test_it_holds, test_it_is_missed = checks_of(probes_docker)
