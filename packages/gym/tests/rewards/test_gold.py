from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from forks import in_a_fork
from intercode import make
from intercode.errors import RewardError
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards import gold as gold_module
from intercode.rewards.gold import GoldCache, GoldResult, GoldRunner, LateError
from intercode.task import Dataset, Task
from intercode_sandbox import Limits, SandboxBackend, get_provider
from waiting import eventually


def result(output: str = "") -> GoldResult:
    return GoldResult(output, {}, {}, frozenset())


class Key(str):
    """A key that knows which threads have looked it up."""

    def __init__(self, text: str) -> None:
        self.askers: set[int] = set()

    def __hash__(self) -> int:
        self.askers.add(threading.get_ident())
        return super().__hash__()


def test_two_threads_do_not_compute_the_same_gold_twice() -> None:
    cache, key = GoldCache(), Key("key")
    computed: list[int] = []

    def compute() -> GoldResult:
        computed.append(threading.get_ident())
        assert eventually(lambda: len(key.askers) == 8)
        return result("slow")

    def ask(_: int) -> GoldResult:
        return cache.get(key, compute)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert len(computed) == 1
    assert all(item is found[0] for item in found)


def test_a_waiting_thread_gets_the_result() -> None:
    cache, key = GoldCache(), Key("key")
    computing, go_on = threading.Event(), threading.Event()

    def compute() -> GoldResult:
        computing.set()
        assert go_on.wait(60)
        return result("first")

    def never() -> GoldResult:
        raise AssertionError("computed twice")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, key, compute)
        assert computing.wait(60)
        second = pool.submit(cache.get, key, never)
        assert eventually(lambda: len(key.askers) == 2)
        go_on.set()
        assert first.result() is second.result()


def test_a_failure_is_not_kept() -> None:
    cache = GoldCache()

    def fail() -> GoldResult:
        raise RewardError("no")

    with pytest.raises(RewardError):
        cache.get("key", fail)
    assert cache.get("key", result) == result()


def test_the_least_recently_used_goes_first() -> None:
    cache = GoldCache(size=2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda key=key: result(key))
    assert len(cache) == 2
    assert cache.get("a", lambda: result("new")).output == "a"
    assert cache.get("b", lambda: result("new")).output == "new"


def test_a_copy_is_the_same_cache() -> None:
    cache = GoldCache()
    assert copy.deepcopy({"cache_gold": cache})["cache_gold"] is cache


class Counting:
    """A start function that counts."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.count = 0
        self.limits = limits

    def __call__(self, task: Task) -> SandboxBackend:
        self.count += 1
        sandbox = get_provider().start("host", self.limits)
        if task.setup:
            assert sandbox.exec(["/bin/bash", "-c", task.setup]).ok
        return sandbox


def runner(start: Callable[[Task], SandboxBackend], cache: GoldCache | None) -> GoldRunner:
    return GoldRunner(start, BashInterpreter, lambda task: f"{task.setup}", cache)


def test_gold_runs_once_per_task_and_gold() -> None:
    start = Counting()
    gold = runner(start, GoldCache())
    task = Task("a", "q", ("echo hi > new; cat new",), setup="echo old > old")
    found = gold.run(task, task.gold[0])
    assert found.output == "hi"
    assert sorted(found.setup_changes) == ["/root/old"]
    assert sorted(found.gold_changes) == ["/root/new", "/root/old"]
    assert found.changed_paths == {"/root/new"}
    assert gold.run(task, task.gold[0]) is found
    assert start.count == 1
    gold.run(task, "true")
    gold.run(Task("a", "q", setup="echo other > old"), task.gold[0])
    assert start.count == 3


def test_gold_that_depends_on_the_clock_runs_anew() -> None:
    start = Counting()
    task = Task("a", "q", ("date +%N",))
    uncached = runner(start, None)
    uncached.run(task, task.gold[0])
    uncached.run(task, task.gold[0])
    assert start.count == 2
    cached = runner(start, GoldCache())
    by_task = Task("a", "q", ("date +%N",), metadata={"cache_gold": False})
    cached.run(by_task, task.gold[0])
    cached.run(by_task, task.gold[0])
    assert start.count == 4


def test_gold_that_was_late_is_run_again_alone_before_its_failure_is_believed() -> None:
    """Attack A4: what agents run may have filled the machine."""
    start = Counting(Limits(timeout=0.5))  # allow limit: what sleeps a second is late
    found = runner(start, GoldCache()).run(Task("a", "q"), "sleep 1; echo done")
    assert (found.output, start.count) == ("done", 2)


def test_gold_that_is_late_at_last_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold_module, "_RETRY_FACTOR", 2)
    start, cache = Counting(Limits(timeout=0.2)), GoldCache()  # allow limit: it sleeps on
    for _ in range(3):
        with pytest.raises(RewardError, match=r"time limit: sleep 99 \(with 2 times its time"):
            runner(start, cache).run(Task("a", "q"), "sleep 99")
    assert start.count == 2  # once with its time limit, once with more time
    monkeypatch.setattr(gold_module, "_LATE_SECONDS", 0.0)
    for _ in range(2):  # what is long ago may have been the machine's fault
        with pytest.raises(RewardError, match="time limit: sleep 98"):
            runner(start, cache).run(Task("a", "q"), "sleep 98")
    assert start.count == 6


def test_a_cache_that_keeps_nothing_does_not_remember_late_gold() -> None:
    start, cache = Counting(), GoldCache(0)
    for _ in range(2):
        with pytest.raises(LateError):
            cache.get("key", lambda: late(start))
    assert start.count == 2


def late(start: Counting) -> GoldResult:
    start.count += 1
    raise LateError("late")


def test_gold_that_ends_its_own_sandbox_is_an_error_and_not_a_reward() -> None:
    folders = "for (1 .. 297) { mkdir d x 250; chdir d x 250 }"
    long = f"perl -e '{folders} open F, q(>), $_ for 1 .. 600'"
    with pytest.raises(RewardError, match="task 'a', gold: the names of what was changed have"):
        runner(Counting(), GoldCache()).run(Task("a", "q"), long)


def test_gold_that_does_not_end_is_an_error_and_not_a_reward() -> None:
    gold = runner(Counting(Limits(timeout=0.3)), GoldCache())  # allow limit: it sleeps on
    with pytest.raises(RewardError, match="task 'a': gold ran into the time limit: sleep 999"):
        gold.run(Task("a", "q"), "sleep 999")


def test_environments_share_the_results_of_what_they_run_on() -> None:
    class Owner:
        pass

    one, other = Owner(), Owner()
    shared = GoldCache.from_option(True, one)
    assert GoldCache.from_option(True, one) is shared
    assert GoldCache.from_option(True, other) is not shared
    assert GoldCache.from_option(False, one) is not shared
    own = GoldCache()
    assert GoldCache.from_option(own, one) is own
    started = threading.Event()

    def compute() -> int:
        started.set()
        # Waits for no one.
        in_a_fork(lambda: GoldCache.from_option(True, one).get("key", lambda: 2))
        return 1

    assert shared.get("key", compute) == 1 and started.is_set()


def test_a_second_environment_runs_no_gold_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    once = GoldRunner._run_once

    def counted(self: GoldRunner, task: Task, gold: str, times: int) -> GoldResult:
        runs.append(gold)
        return once(self, task, gold, times)

    monkeypatch.setattr(GoldRunner, "_run_once", counted)
    marker = f"echo {id(runs)}"
    tasks = Dataset([Task("a", "q", (marker,))])
    for cache_gold in (True, True, False):
        with closing(make("bash", data=tasks, cache_gold=cache_gold)) as env:
            env.reset()
            env.step(marker)
            assert env.step("submit")[1] == 1.0
    assert runs == [marker] * 2
