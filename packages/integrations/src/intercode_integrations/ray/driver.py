"""The driver of a run on a cluster: it starts stations, hands out batches, and keeps the record.

A batch of jobs is recorded when its answer is here, and never before; so a station that is lost,
alone or with its machine, costs the batches that it had, which are begun again elsewhere.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import count
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.episode import Episode
from intercode.errors import SandboxError, SandboxUnavailableError
from intercode.evaluate.executor import Work
from intercode.evaluate.loop import failed_episode
from intercode.evaluate.progress import Progress
from intercode.evaluate.worker import FATAL_ERROR_NAMES, PATIENCE, TICK, Interrupts, Job
from intercode.registry import ENVS
from intercode_integrations.ray.cluster import connected, nodes_with_room, on_node
from intercode_integrations.ray.shared_limits import Ledger
from intercode_integrations.ray.worker import Assignment, Opened, Played, Station
from intercode_integrations.serve.client import raised
from intercode_sandbox.images.resolve import resolve
from intercode_sandbox.images.transfer import export_image
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.records import Key

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between looks at the cluster's nodes."""
BATCH = 1.0
"""Seconds that a batch is to take: so much is lost with a station, at the most twice."""
LARGEST = 64
"""Jobs of a batch."""
UNDER_WAY = 30.0
"""Seconds without any station after which it is said what is waited for."""


@dataclass(eq=False)
class _Post:
    """A station, as the driver knows it."""

    name: str
    node: str
    actor: Any
    is_open: bool = False
    busy: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a station that is under way."""

    post: _Post
    batch: list[Job] = field(default_factory=list)
    """Empty: it is being opened."""


class Spread:
    """See `intercode.evaluate.worker.Runs`.

    Args:
        jobs: The jobs, in order.
        work: The run.
        address: The cluster's.
        cpus: The processors that each station reserves.
    """

    def __init__(self, jobs: Sequence[Job], work: Work, address: str | None, cpus: float) -> None:
        self.stopped: str | None = None
        self._left = deque(jobs)
        self._lost: Counter[Key] = Counter()
        """How often a job was lost, alone in its batch after the first time."""
        self._work, self._address, self._cpus = work, address, cpus
        self._workers = min(work.plan.spec.how.workers, max(1, len(jobs)))
        self._posts: list[_Post] = []
        self._calls: dict[Any, _Call] = {}
        self._refused: dict[str, str] = {}
        """Node → why it takes no part."""
        self._failures: Counter[str] = Counter()
        self._numbers = count(1)
        self._seconds = 0.0
        """The time of an episode, of late."""
        self._draining = False
        self._failure: BaseException | None = None
        self._told: set[str] = set()
        self._waiting = time.monotonic()

    def run(self, interrupts: Interrupts, progress: Progress) -> Generator[Episode, None, None]:
        """Yield the episodes, each as soon as it is recorded."""
        if not self._left:
            return
        with connected(self._address) as self._ray:
            self._begin()
            try:
                yield from self._loop(interrupts, progress)
                self._close()
            finally:
                for post in self._posts:
                    self._ray.kill(post.actor)
                if self._ledger is not None:
                    self._settle()
                    self._ray.kill(self._ledger)
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        ray, plan = self._ray, self._work.plan
        facts, spec = self._work.setting.facts, plan.spec
        images = {} if self._work.setting.provider is None else facts["images"]
        self._ledger: Any = None
        if spec.model.name or spec.env.judge_model or spec.how.max_connections:
            budget = self._work.budget
            assert budget is not None  # a run of a spec has one
            self._before = budget.spent.cost, budget.spent.tokens
            self._ledger = (
                ray.remote(Ledger)
                .options(
                    num_cpus=0,
                    max_concurrency=2 * self._workers + 8,
                    scheduling_strategy=on_node(ray.get_runtime_context().get_node_id()),
                )
                .remote(budget.max_cost, budget.max_tokens, budget.spent, spec.how.max_connections)
            )
        carried = {n: d for n, d in images.items() if not self._image(n).host}
        hidden = [spec.how.out, plan.dataset.source]
        given = Assignment(
            plan,
            facts,
            carried,
            folder=str(Path.cwd()),
            hidden=tuple(str(Path(one).absolute()) for one in hidden if one is not None),
            own=ENVS.file_reference(spec.env.name),
            ledger=self._ledger,
        )
        self._given = ray.put(given)
        self._files: dict[str, Any] = {}
        self._looked = 0.0

    def _loop(self, interrupts: Interrupts, progress: Progress) -> Generator[Episode, None, None]:
        heard = 0
        while True:
            if interrupts.count > 1:
                raise KeyboardInterrupt
            if interrupts.count > heard:
                heard = interrupts.count
                self._drain()
                progress.stopping(sum(len(call.batch) for call in self._calls.values()))
            playing = any(call.batch for call in self._calls.values())
            if not playing and (self._draining or not self._left):
                return
            if not self._draining:
                self._look(progress)
                self._hand_out()
            yield from self._received(progress, interrupts)
            progress.tick()

    # Stations

    def _look(self, progress: Progress) -> None:
        """Start stations on nodes that have too few; at first, and on nodes that have joined."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        nodes = {n["NodeID"]: n for n in self._ray.nodes() if n["Alive"]}
        self._names = {i: f"{n['NodeName']} ({i[:8]})" for i, n in nodes.items()}
        wanted = nodes_with_room(self._workers, self._cpus, without=self._refused)
        share = ceil(self._workers / (wanted.total() or 1))
        there = Counter(post.node for post in self._posts)
        for node, number in wanted.items():
            for _ in range(number - there[node]):
                self._start(node, share, nodes[node]["Resources"])
        if any(post.is_open for post in self._posts):
            self._waiting = now
        elif now - self._waiting > UNDER_WAY:
            self._waiting = now
            reasons = "; ".join(f"{n}: {why}" for n, why in self._refused.items())
            text = "no node has room for a process with environments yet"
            progress.nodes(0, f"{text} ({reasons})" if reasons else text)

    def _start(self, node: str, share: int, has: dict[str, float]) -> None:
        # What the sandboxes of its environments may take is reserved, as far as it is there at all.
        each = self._work.setting.facts.get("limits", {}).get("memory", 0)
        memory = min(share * each, int(has.get("memory", 0) * 0.9 / max(1, int(has["CPU"]))))
        name = f"station-{next(self._numbers)}"
        actor = (
            self._ray.remote(Station)
            .options(
                num_cpus=self._cpus,
                memory=memory or None,
                max_concurrency=self._workers + 2,
                scheduling_strategy=on_node(node),
            )
            .remote(name)
        )
        post = _Post(name, node, actor)
        self._posts.append(post)
        self._open(post)

    def _open(self, post: _Post) -> None:
        self._calls[post.actor.open.remote(self._given, {})] = _Call(post)

    def _opened(self, post: _Post, opened: Opened, progress: Progress) -> None:
        if opened.missing:
            for name in opened.missing:
                self._ship(name)
            files = {name: self._files[name] for name in opened.missing}
            self._calls[post.actor.open.remote(self._given, files)] = _Call(post)
            return
        if opened.refusal:
            self._refuse(post.node, opened.refusal, progress)
            return
        post.is_open = True
        if post.node not in self._told:
            self._told.add(post.node)
            progress.nodes(self._count(), f"{self._names[post.node]} takes part")

    def _refuse(self, node: str, why: str, progress: Progress) -> None:
        """Leave a node out."""
        if node in self._refused:
            return
        self._refused[node] = why
        for post in [post for post in self._posts if post.node == node]:
            self._let_go(post)
        progress.nodes(self._count(), f"{self._names[node]} is left out: {why}")
        if not nodes_with_room(1, self._cpus, without=self._refused):
            said = f"no node of the cluster can take part; the last one: {why}"
            self._failure = raised(SandboxUnavailableError.__name__, said)
            self._drain()

    def _count(self) -> int:
        return len({post.node for post in self._posts if post.is_open})

    def _lose(self, post: _Post, why: Exception, progress: Progress) -> None:
        """Begin again elsewhere what a lost station had."""
        self._let_go(post)
        self._failures[post.node] += 1
        if not post.is_open and self._failures[post.node] > 2:
            self._refuse(post.node, f"its processes end at once: {why}", progress)
            return
        self._told.discard(post.node)
        name = self._names.get(post.node, post.node[:8])
        progress.nodes(self._count(), f"{name}: a process was lost; its episodes begin again")
        log.info("%s on %s was lost: %s", post.name, name, why)

    def _let_go(self, post: _Post) -> None:
        if post not in self._posts:
            return
        self._posts.remove(post)
        self._ray.kill(post.actor)
        if self._ledger is not None:
            self._ledger.lost.remote(post.name)
        for call in [ref for ref, call in self._calls.items() if call.post is post]:
            batch = self._calls.pop(call).batch
            if len(batch) == 1:  # else it may be any other's fault
                self._lost[batch[0].key] += 1
            for job in reversed(batch):
                self._lost.setdefault(job.key, 0)
                self._left.appendleft(job)

    # Images

    def _image(self, name: str) -> Any:
        provider: Any = self._work.setting.provider
        return provider.image(name) if hasattr(provider, "image") else resolve(name)

    def _ship(self, name: str) -> None:
        """Put an image into the object store, once."""
        if name not in self._files:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "image.tar")
                export_image(self._image(name), name, file)
                self._files[name] = self._ray.put(file.read_bytes())

    # Jobs

    def _hand_out(self) -> None:
        free = self._workers - sum(post.busy for post in self._posts)
        ready = [(post.busy, n, post) for n, post in enumerate(self._posts) if post.is_open]
        heapify(ready)
        while self._left and ready and free > 0:
            _, n, post = ready[0]
            batch = self._batch()
            keys = [(job.epoch, job.task.task_id) for job in batch]
            call = _Call(post, batch)
            self._calls[post.actor.play.remote(keys)] = call
            post.busy += 1
            free -= 1
            heapreplace(ready, (post.busy, n, post))

    def _batch(self) -> list[Job]:
        """Take jobs for a batch; one that was lost before goes alone."""
        fair = len(self._left) // (2 * self._workers)
        size = int(BATCH / self._seconds) if self._seconds else 1
        batch = [self._left.popleft()]
        while len(batch) < min(size, fair, LARGEST) and self._left:
            if batch[-1].key in self._lost or self._left[0].key in self._lost:
                break
            batch.append(self._left.popleft())
        return batch

    def _received(
        self, progress: Progress, interrupts: Interrupts
    ) -> Generator[Episode, None, None]:
        """Wait a little for answers; yield their episodes."""
        if not self._calls:
            with suppress(queue.Empty):
                interrupts.messages.get(timeout=TICK)
            return
        refs = list(self._calls)
        ready, _ = self._ray.wait(refs, timeout=TICK)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        episodes: list[Episode] = []
        for ref in ready:
            if (call := self._calls.pop(ref, None)) is None:
                continue  # of a station that was lost meanwhile
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError:
                raise  # a defect of ours
            except self._ray.exceptions.RayError as error:
                self._calls[ref] = call
                self._lose(call.post, error, progress)
                episodes += self._given_up()
                continue
            if isinstance(answer, Opened):
                self._opened(call.post, answer, progress)
            else:
                episodes += self._played(call, answer, progress)
        if episodes:
            self._work.record(*episodes)
            yield from episodes

    def _played(self, call: _Call, answer: Played, progress: Progress) -> list[Episode]:
        call.post.busy -= 1
        if done := len(answer.episodes):
            each = answer.seconds / done  # without the wait for this thread, if that is the limit
            self._seconds = 0.8 * self._seconds + 0.2 * each if self._seconds else each
        self._left.extendleft(reversed(call.batch[done:]))
        for episode in answer.episodes:
            if episode.metadata.get("error_type") in FATAL_ERROR_NAMES:
                self.stopped = self.stopped or episode.error
                self._drain()
        if answer.error is not None:
            name, text = answer.error
            if name == SandboxUnavailableError.__name__:
                self._refuse(call.post.node, text, progress)
            else:
                self._failure = self._failure or raised(name, text)
                self._drain()
        return answer.episodes

    def _given_up(self) -> Iterable[Episode]:
        """Return the episodes of jobs with which stations were lost again and again."""
        most = self._work.plan.spec.how.retries
        for job in [job for job in self._left if self._lost[job.key] > most]:
            self._left.remove(job)
            del self._lost[job.key]
            times = format_count(most + 1, "time")
            error = SandboxError(f"the process that ran the episode was lost {times}")
            env = str(self._work.setting.facts.get("env", ""))
            partial = Episode(job.task.task_id, job.task.query, env, epoch=job.epoch)
            partial.agent = self._work.agent.name
            yield failed_episode(error, partial)

    # The end

    def _drain(self) -> None:
        self._draining = True
        for post in self._posts:
            post.actor.drain.remote()

    def _close(self) -> None:
        """Let stations close their environments: that leaves less behind than an end by force."""
        ends = [post.actor.close.remote() for post in self._posts if post.is_open]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)

    def _settle(self) -> None:
        """Take what was spent into the budget, which further runs may share."""
        budget = self._work.budget
        try:
            spent, presumed = self._ray.get(self._ledger.spending.remote(), timeout=PATIENCE)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            log.warning("what was spent is not known: %s", error)
            return
        if budget is not None:
            cost, tokens = self._before
            budget.spent.add(spent.cost - cost, spent.tokens - tokens)
            budget.presumed.add(presumed.cost, presumed.tokens)
