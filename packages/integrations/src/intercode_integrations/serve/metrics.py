"""Metrics of a server: counters in memory that all worker processes share.

Each worker has its own row of counters, and writes only to that row. All workers can read all rows.
After the death of a worker, the parent process sets the gauges in its row to 0.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

from intercode_integrations.serve.messages import CODES

BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Upper bounds, in seconds, of the buckets of the histogram of actions' durations."""
ENDS = ("closed", "gone", "idle", "aged", "stalled", "draining", "failed")
"""Reasons for which sessions end, each with a counter."""
_SUMS = {
    "refused": "Clients refused for want of capacity.",
    "forbidden": "Requests refused for their token, Host or Origin.",
    "opened": "Sessions opened.",
    "episodes": "Episodes ended.",
    "failures": "Episodes that the infrastructure failed.",
    "received": "Messages received.",
    "restarts": "Workers that died.",
}
_FIELDS = (
    "sessions",
    "serving",
    *_SUMS,
    *(f"ended {reason}" for reason in ENDS),
    *(f"error {code}" for code in CODES),
    *(f"step {number}" for number in range(len(BUCKETS) + 1)),
    "seconds",
)
_POSITIONS = {name: position for position, name in enumerate(_FIELDS)}


class ServerMetrics:
    """The metrics of a server; an object writes to the row of its worker process.

    Args:
        workers: The number of workers.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers, self.worker = workers, 0
        memory = mmap.mmap(-1, workers * len(_FIELDS) * 8)
        self._shared_values = memoryview(memory).cast("d")
        self._lock = os.memfd_create("intercode-serve")

    def add(self, name: str, amount: float = 1) -> None:
        """Add an amount to a metric in this worker's row."""
        self._shared_values[self.worker * len(_FIELDS) + _POSITIONS[name]] += amount

    def step(self, seconds: float) -> None:
        """Add an action to the histogram of durations."""
        self.add(f"step {bisect_left(BUCKETS, seconds)}")
        self.add("seconds", seconds)

    def total(self, name: str) -> float:
        """Return the sum of a metric over the rows of all workers."""
        return sum(self._shared_values[_POSITIONS[name] :: len(_FIELDS)].tolist())

    def admit(self, max_sessions: int) -> bool:
        """Count a new session, unless all workers together already have the maximum.

        Returns:
            Whether the session was counted, and may open.
        """
        with self._hold_lock():
            free = self.total("sessions") < max_sessions
            self.add("sessions", free)
        return free

    def forget(self, worker: int) -> bool:
        """Subtract the open sessions of a dead worker from the metrics, and count its death.

        Returns:
            Whether the worker had started to serve.
        """
        row_offset = worker * len(_FIELDS)
        self._shared_values[row_offset + _POSITIONS["restarts"]] += 1
        has_served, self._shared_values[row_offset + _POSITIONS["serving"]] = (
            self._shared_values[row_offset + _POSITIONS["serving"]],
            0,
        )
        self._shared_values[row_offset + _POSITIONS["sessions"]] = 0
        return bool(has_served)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold a lock that all workers share; the kernel releases the lock of a dead worker."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def metrics(self, capacity: int) -> str:
        """Return all metrics in Prometheus's text format.

        Args:
            capacity: The maximum number of sessions.
        """
        lines: list[str] = []

        def add_metric(name: str, kind: str, description: str, values: dict[str, float]) -> None:
            lines.append(f"# HELP intercode_{name} {description}")
            lines.append(f"# TYPE intercode_{name} {kind}")
            lines.extend(f"intercode_{name}{label} {value:g}" for label, value in values.items())

        add_metric("sessions", "gauge", "Open sessions.", {"": self.total("sessions")})
        add_metric("workers", "gauge", "Workers that serve.", {"": self.total("serving")})
        add_metric("sessions_limit", "gauge", "Sessions that may be open.", {"": capacity})
        for name, description in _SUMS.items():
            add_metric(f"{name}_total", "counter", description, {"": self.total(name)})
        end_counts = {
            f'{{why="{end_reason}"}}': self.total(f"ended {end_reason}") for end_reason in ENDS
        }
        add_metric("ended_total", "counter", "Sessions ended.", end_counts)
        code_counts = {
            f'{{code="{error_code}"}}': self.total(f"error {error_code}") for error_code in CODES
        }
        add_metric("errors_total", "counter", "Errors told to clients.", code_counts)
        cumulative_count, step_values = 0.0, {}
        for bucket_index, bucket_limit in enumerate((*BUCKETS, "+Inf")):
            cumulative_count += self.total(f"step {bucket_index}")
            step_values[f'_bucket{{le="{bucket_limit}"}}'] = cumulative_count
        step_values |= {"_sum": self.total("seconds"), "_count": cumulative_count}
        add_metric("step_seconds", "histogram", "Seconds that actions took.", step_values)
        return "\n".join(lines) + "\n"
