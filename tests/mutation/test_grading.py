"""Grading: each defence holds, and is missed."""

from mutation import (
    probes_answers,
    probes_grading,
    probes_repositories,
    probes_sql,
)
from mutation.checks import checks_of

test_it_holds, test_it_is_missed = checks_of(
    probes_answers, probes_grading, probes_repositories, probes_sql
)
