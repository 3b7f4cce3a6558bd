"""Servers, viewer, records, data and clusters: each defence holds, and is missed."""

from mutation import (
    probes_data,
    probes_interrupts,
    probes_ray,
    probes_records,
    probes_serve,
    probes_view,
)
from mutation.checks import checks_of

test_it_holds, test_it_is_missed = checks_of(
    probes_data, probes_interrupts, probes_ray, probes_records, probes_serve, probes_view
)
