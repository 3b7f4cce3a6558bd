"""A taskset for verifiers as others write them."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def letters(self, task: SumData, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumConfig(vf.TasksetConfig):
    most: int = 2


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> Iterator[SumTask]:
        for one in range(self.config.most):
            yield SumTask(
                SumData(prompt=f"{one} + 1", system_prompt="Add.", answer=f"{one + 1}"),
                self.config.task,
            )


__all__ = ["Sums"]
