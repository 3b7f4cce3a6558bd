"""Runs and vectors on the machines of a Ray cluster (the extra ``ray``).

``evaluate(spec, executor=Ray())`` and ``intercode run … --on ray`` spread a run's episodes over the
cluster, and ``intercode.make_vec(…, backend="ray")`` a vector's environments. This process, the
driver, alone writes the run's folder; the others are stations: processes with warm environments,
in which agents act beside their sandboxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intercode_integrations.ray.cluster import import_ray, refuse_passwords

if TYPE_CHECKING:
    from intercode.evaluate.executor import Work
    from intercode.evaluate.worker import Job
    from intercode.spec import RunSpec
    from intercode_integrations.ray.driver import RayExecutor


class Ray:
    """The executor on a Ray cluster.

    Args:
        address: The cluster: ``HOST:PORT``, ``ray://HOST:PORT`` for Ray's client, or ``ray``; None,
            as ``ray``: that of ``RAY_ADDRESS``, or the one that runs on this machine, or else one
            that is started here for this process.
        cpus: The processors that a process with environments reserves in Ray.
    """

    def __init__(self, address: str | None = None, *, cpus: float = 1.0) -> None:
        self.address = None if address in (None, "ray", "ray://") else address
        self.cpus = cpus

    def check(self, spec: RunSpec) -> None:
        """See `intercode.evaluate.executor.Executor`.

        Raises:
            UsageError: Ray is not installed, or an option has a password.
        """
        refuse_passwords(spec.flat())
        import_ray()

    def start(self, jobs: Sequence[Job], work: Work) -> RayExecutor:
        """See `intercode.evaluate.executor.Executor`."""
        from intercode_integrations.ray.driver import RayExecutor

        return RayExecutor(jobs, work, self.address, self.cpus)
