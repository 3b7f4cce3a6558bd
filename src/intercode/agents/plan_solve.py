"""Plan & Solve: first a plan, then its steps, one a turn (Wang et al., 2023).

With *refine* the model may go on after the last step, until it submits. In 2023 an episode ended
when its true reward was 1; that is, again, an agent of another name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from intercode.agents.language import Strategy
from intercode.agents.parser import said
from intercode.agents.talk import Talk
from intercode.episode import Turn

_STEP = re.compile(r"^[ \t*_#]*(?:step[ \t]+)?\d+[.):][*_]*[ \t]+", re.MULTILINE | re.IGNORECASE)


class PlanSolve:
    """Carries out a plan of the model's."""

    def __init__(self, talk: Talk, *, refine: bool = False) -> None:
        self._talk = talk
        self._refine = refine
        self._plan: list[str] | None = None
        self._done = 0

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The action of the next step; after the last one, a better one or ``submit``."""
        shown = observation if history else None
        if self._plan is None:
            self._plan = self._make_plan()
        if self._done < len(self._plan):
            step = self._plan[self._done]
            self._done += 1
            self._talk.tell("step", shown, step=step, number=self._done, steps=len(self._plan))
            action = self._talk.ask()
            self._talk.note(step=step)
            return action
        if not self._refine:
            return "submit"
        self._talk.tell("refine", shown)
        return self._talk.ask()

    def _make_plan(self) -> list[str]:
        self._talk.begin(max_steps=self._talk.scene.max_turns)
        reply = self._talk.reply()
        self._talk.dialogue.keep()
        return read_plan(said(reply.text)) or [self._talk.scene.query]


def read_plan(text: str) -> list[str]:
    """The steps of a numbered list, without what stands before it."""
    steps = [step.strip() for step in _STEP.split(text)[1:]]
    if steps:  # what follows the last one after an empty line is no part of it
        steps[-1] = steps[-1].partition("\n\n")[0].rstrip()
    return [step for step in steps if step]


def _with_refine(talk: Talk) -> PlanSolve:
    return PlanSolve(talk, refine=True)


PLAN_SOLVE = Strategy("plan-solve", "plan_solve", PlanSolve)
PLAN_SOLVE_REFINE = Strategy("plan-solve-refine", "plan_solve", _with_refine)
PLAN_SOLVE_REFINE_ORACLE = Strategy(
    "plan-solve-refine-oracle", "plan_solve", _with_refine, sees_reward=True
)
