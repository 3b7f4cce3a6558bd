"""A budget that holds: what a call may cost at most is set aside before the call is made."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from intercode.errors import BudgetError, UsageError
from intercode.models.base import Usage

_ROUNDING = 1e-9


@dataclass(slots=True)
class Spending:
    """An amount of each kind."""

    cost: float = 0.0
    tokens: int = 0

    def add(self, cost: float, tokens: int) -> None:
        """Add to it; a negative amount takes away."""
        self.cost += cost
        self.tokens += tokens


class Budget:
    """US dollars and tokens that all who share it may spend, together.

    A call that might not fit waits while others are under way, which mostly need less than is set
    aside for them, and is refused when even that would not help.

    Attributes:
        spent: What replies took, and what was spent of it before.
        presumed: Set aside for calls whose answer was lost, or did not say what it took: they may
            have been charged for, so they count.
    """

    def __init__(
        self,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        *,
        before: Spending | None = None,
    ) -> None:
        """Set the limits; ``None`` is none.

        Args:
            max_cost: In US dollars.
            max_tokens: In and out.
            before: What was spent of it before; see `intercode.evaluate.budget_spent`.

        Raises:
            UsageError: A limit is no positive number.
        """
        for name, limit in (("max_cost", max_cost), ("max_tokens", max_tokens)):
            if limit is not None and not limit > 0:
                raise UsageError(f"a budget's {name} must be above 0, not {limit}")
        self.max_cost = max_cost
        self.max_tokens = max_tokens
        self.spent = replace(before) if before is not None else Spending()
        self.presumed = Spending()
        self._held = Spending()
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"Budget(max_cost={self.max_cost}, max_tokens={self.max_tokens})"

    def reserve(self, tokens: int, cost: float) -> Hold:
        """Set aside what a call may take at most. End it with one of the hold's methods.

        Raises:
            BudgetError: So much is not left.
        """
        with self._changed:
            while True:
                if not self._fits(tokens, cost, Spending()):
                    raise BudgetError(self._refusal(tokens, cost))
                if self._fits(tokens, cost, self._held):
                    self._held.add(cost, tokens)
                    return Hold(self, tokens, cost)
                self._changed.wait()

    def _fits(self, tokens: int, cost: float, held: Spending) -> bool:
        used = self.spent.tokens + self.presumed.tokens + held.tokens
        paid = self.spent.cost + self.presumed.cost + held.cost
        return (self.max_tokens is None or used + tokens <= self.max_tokens) and (
            self.max_cost is None or paid + cost <= self.max_cost + _ROUNDING
        )

    def _refusal(self, tokens: int, cost: float) -> str:
        paid = self.spent.cost + self.presumed.cost
        used = self.spent.tokens + self.presumed.tokens
        parts = []
        if self.max_cost is not None:
            parts.append(f"${paid:.4f} of ${self.max_cost:g}, and a call may take ${cost:.4f}")
        if self.max_tokens is not None:
            parts.append(f"{used} of {self.max_tokens} tokens, and a call may take {tokens}")
        advice = "give a larger one, or limit the length of a reply"
        return f"the budget is used up: {'; '.join(parts)}: {advice}"

    def _end(self, hold: Hold, to: Spending | None, cost: float, tokens: int) -> None:
        with self._changed:
            self._held.add(-hold.cost, -hold.tokens)
            if to is not None:
                to.add(cost, tokens)
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Hold:
    """What is set aside for one call that is under way."""

    budget: Budget
    tokens: int
    cost: float

    def settle(self, usage: Usage, cost: float | None) -> None:
        """The call took this."""
        budget = self.budget
        budget._end(self, budget.spent, cost or 0.0, usage.total)

    def presume(self) -> None:
        """Nobody says what the call took: all that was set aside counts."""
        self.budget._end(self, self.budget.presumed, self.cost, self.tokens)

    def release(self) -> None:
        """The call took nothing."""
        self.budget._end(self, None, 0.0, 0)
