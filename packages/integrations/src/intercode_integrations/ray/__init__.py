"""Runs and vectors on the machines of a Ray cluster (the extra ``ray``).

``evaluate(spec, executor=Ray())`` and ``intercode run … --on ray`` distribute a run's episodes over
the cluster. ``intercode.make_vec(…, backend="ray")`` distributes a vector's environments. The
calling process is the driver, and the only process that writes the run's folder. The other
processes are Ray workers, which keep environments open, and in which agents act next to their
sandboxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intercode_integrations.ray.cluster import import_ray, refuse_passwords

if TYPE_CHECKING:
    from intercode.evaluate.executor import PreparedRun
    from intercode.evaluate.worker import EpisodeJob
    from intercode.spec import RunSpec
    from intercode_integrations.ray.driver import RayExecutor


class Ray:
    """The executor that distributes a run's episodes over a Ray cluster.

    Args:
        address: The cluster: ``HOST:PORT``, ``ray://HOST:PORT`` for Ray's client, or ``ray``. None
            or ``ray``: the cluster of ``RAY_ADDRESS``. Without this variable, Ray uses a cluster
            that runs on this machine, or starts a local one for this process.
        cpus: The processors that each process with environments reserves in Ray.
    """

    def __init__(self, address: str | None = None, *, cpus: float = 1.0) -> None:
        self.address = None if address in (None, "ray", "ray://") else address
        self.cpus = cpus

    def check(self, spec: RunSpec) -> None:
        """Validate a spec before a run; see `intercode.evaluate.executor.Executor`.

        Raises:
            UsageError: Ray is not installed, or an option contains a password.
        """
        refuse_passwords(spec.flat())
        import_ray()

    def start(self, jobs: Sequence[EpisodeJob], work: PreparedRun) -> RayExecutor:
        """Return the executor of a run; see `intercode.evaluate.executor.Executor`."""
        from intercode_integrations.ray.driver import RayExecutor

        return RayExecutor(jobs, work, self.address, self.cpus)
