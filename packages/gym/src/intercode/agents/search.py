"""Search over forks of an episode: a model's several proposals are tried, and the best goes on.

States are judged by the model, or by a test that the agent may see: never by the reward.

- *Tree search*: in each state several actions are proposed, and each is taken in a fork. A *beam*
  keeps the best states of a turn; *best-first* continues from the best state of all.
- *Best of n*: from one turn on the episode is played several times to its end, each time in a fork.

The proposals are those of ReAct.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from intercode.agents.held import HeldEnv
from intercode.agents.language import Allowance, LanguageAgents, Options, Search, Strategy
from intercode.agents.strategies import React
from intercode.agents.talk import Prompt, Talk
from intercode.episode import Episode
from intercode.errors import ContextLengthError, ForkError, UsageError
from intercode.models.base import Message, Model, Settings

PROPOSALS = 3
"""Replies for each state, unless `samples` says otherwise."""


@dataclass(slots=True, eq=False)
class Node:
    """A state of the episode: a fork after an action; or an action that would end it."""

    number: int
    parent: Node | None
    talk: Talk
    """The dialogue up to the action, without its observation."""
    env: HeldEnv
    action: str = ""
    ends: bool = False
    """Whether the action ends the episode; it is taken only if this node is chosen."""
    judgement: float | None = None
    tokens: int = 0
    """Tokens of the proposals and judgements that are about this node."""
    lost: str = ""
    """The reason why it could not be tried."""

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""
        return self.ends or not self.env.running

    @property
    def turn(self) -> int:
        """The number of turns so far."""
        return 0 if self.parent is None else self.parent.turn + 1


@dataclass(slots=True)
class Tree:
    """All states of an episode that were tried, for the record."""

    nodes: list[Node] = field(default_factory=list)
    chosen: Node | None = None
    tried: int = 0
    """Actions that were taken."""

    def add(self, parent: Node | None, talk: Talk, env: HeldEnv, action: str = "") -> Node:
        """Add a state."""
        node = Node(len(self.nodes), parent, talk, env, action, _ends(action))
        self.nodes.append(node)
        return node

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "chosen": None if self.chosen is None else self.chosen.number,
            "nodes": [
                {
                    "parent": None if node.parent is None else node.parent.number,
                    "turn": node.turn,
                    "action": str(node.action),
                    "judgement": node.judgement,
                    "tokens": node.tokens,
                    **({"lost": node.lost} if node.lost else {}),
                }
                for node in self.nodes
            ],
        }


def _ends(action: str) -> bool:
    return action.strip().partition(" ")[0] in ("submit", "skip")


class Searcher:
    """Plays one episode by searching its forks.

    Args:
        talk: With the model, not begun.
        options: The options; `samples` are the proposals for a state.
        allowance: The limits of the episode.
    """

    name: ClassVar[str]

    def __init__(self, talk: Talk, options: Options, allowance: Allowance) -> None:
        self._first = talk
        self._samples = options.samples
        self._how = options.search or Search()
        self._allowance = allowance
        self._tree = Tree()
        self._prompt = Prompt("search")
        self._replies = 0

    def run(self, env: HeldEnv) -> Episode:
        """Play the episode, and return the one of the branch that is chosen."""
        node = self._tree.add(None, self._first, env)
        while True:
            node = self._tree.chosen = self._search(node)
            if node.env.running:
                node.env.step(node.action if node.ends else "submit")
            if not node.env.running:
                return node.env.episode
            node.ends = False  # an answer was tried, and the episode continues

    def leave_out(self, seconds: float) -> None:
        """Leave seconds out that it was made to wait."""
        self._allowance.leave_out(seconds)

    def episode_metadata(self) -> dict[str, Any]:
        """Return the transcript, and the tree."""
        how = {"agent": self.name, "tried": self._tree.tried}
        return {**self._allowance.metadata(), "search": {**how, **self._tree.to_dict()}}

    def _search(self, root: Node) -> Node:
        """Return the state to hand in, or whose last action ends the episode."""
        raise NotImplementedError

    def _may_go_on(self, node: Node) -> bool:
        """Tell whether a state may be continued, within all limits."""
        how = self._how
        deep = how.depth is not None and node.turn >= how.depth
        return not (
            node.done or deep or self._tree.tried >= how.budget or self._allowance.is_used_up()
        )

    def _propose(self, node: Node, count: int) -> list[Node]:
        """Ask for the next action several times; equal ones are one proposal. None is taken yet."""
        found: dict[str, Node] = {}
        transcript = self._allowance.transcript
        for _ in range(count):
            base = self._first.dialogue.settings.seed
            talk = node.talk.branch(None if base is None else base + self._replies)
            self._replies += 1
            transcript.turn = len(node.env.episode.turns)
            before = transcript.usage.total
            try:
                action = React(talk).act(node.env.observation, node.env.episode.turns)
            except ContextLengthError:
                if not node.env.episode.turns:
                    raise  # it has never acted: that is not an attempt
                self._allowance.ended_by = "context"
                break
            if action in found:
                transcript.note(repeats=found[action].number)
            else:
                found[action] = self._tree.add(node, talk, node.env, action)
                transcript.note(node=found[action].number)
            found[action].tokens += transcript.usage.total - before
        return [*found.values()]

    def _take(self, node: Node, children: Sequence[Node]) -> list[Node]:
        """Take each proposed action in a fork of its own; return those that could be tried."""
        acting = [child for child in children if not child.ends]
        acting = acting[: max(0, self._how.budget - self._tree.tried)]
        ending = [child for child in children if child.ends]
        spare = 0 if ending or not acting else 1  # the environment itself takes the last one
        try:
            forks = node.env.fork(len(acting) - spare) if len(acting) > spare else []
        except ForkError as error:
            for child in children[1:]:
                child.lost = str(error)
            first = children[:1]
            acting, ending = ([], [*first]) if first[0].ends else ([*first], [])
            forks = []
        for child in children:
            if not child.ends and child not in acting and not child.lost:
                child.lost = "the budget was used up"
        envs = [*forks, node.env]
        tried = [*ending]
        for child, env in zip(acting, envs, strict=False):
            child.env = env
            self._tree.tried += 1
            try:
                env.step(child.action)
            except ForkError as error:  # the fork could not be started
                child.lost = str(error)
                continue
            tried.append(child)
        return sorted(tried, key=lambda child: child.number)

    def _judge(self, node: Node) -> None:
        """Judge a state, from 0 (hopeless) to 1."""
        parent = None if node.parent is None else node.parent.judgement
        if self._how.test is None:
            node.judgement = self._asked(node)
        elif not node.env.running or (node.ends and parent is not None):
            node.judgement = parent  # there is no turn left for a test; or it is the same state
        else:
            try:
                with_test = node.env.fork()[0]
                node.judgement = float(bool(with_test.step(self._how.test)[4].get("ok")))
                with_test.close()
            except ForkError as error:
                node.judgement, node.lost = parent, f"not tested: {error}"

    def _asked(self, node: Node) -> float | None:
        """Ask the model how good a state is; None if its reply does not say."""
        transcript = self._allowance.transcript
        seen = None if node.ends else node.talk.clip(node.env.observation.rstrip("\n"))
        turns = node.env.episode.turns
        failed = bool(turns) and not turns[-1].ok
        question = self._prompt.render("judge", observation=seen, failed=failed, finished=node.done)
        settings = replace(node.talk.dialogue.settings, temperature=0.0)
        transcript.turn = len(node.env.episode.turns)
        before = transcript.usage.total
        try:
            sent = [*node.talk.dialogue.messages, Message("user", question)]
            verdict = transcript.complete(sent, settings)
        except ContextLengthError:
            return None
        node.tokens += transcript.usage.total - before
        transcript.note(judges=node.number)
        number = re.search(r"\d+(?:\.\d+)?", verdict.text)
        return None if number is None else min(1.0, float(number[0]) / 10)

    def _let_go(self, kept: Iterable[Node]) -> None:
        """Close the forks of all other states."""
        needed = {id(node.env) for node in kept}
        for node in self._tree.nodes:
            if id(node.env) not in needed:
                node.env.close()


def _goodness(node: Node) -> tuple[float, bool, int]:
    """Order states: by judgement, finished ones first among equals, then the earlier one."""
    return node.judgement or 0.0, node.done, -node.number


class TreeSearch(Searcher):
    """Tries several actions in each state, each in a fork."""

    name = "tree-search"

    def _search(self, root: Node) -> Node:
        leaves = [root]
        while True:
            leaves.sort(key=_goodness, reverse=True)
            if self._how.order == "beam":
                leaves = leaves[: self._how.width]
                self._let_go(leaves)
            going = [leaf for leaf in leaves if self._may_go_on(leaf)]
            if not going or leaves[0].done:
                self._let_go(leaves[:1])
                return leaves[0]
            chosen = going if self._how.order == "beam" else going[:1]
            leaves = [leaf for leaf in leaves if leaf not in chosen]
            for leaf in chosen:
                leaves += self._expand(leaf) if self._may_go_on(leaf) else [leaf]

    def _expand(self, node: Node) -> list[Node]:
        """Return the states that follow, judged; the state itself if none does."""
        children = (
            self._take(node, proposed) if (proposed := self._propose(node, self._samples)) else []
        )
        for child in children:
            self._judge(child)
        return children or [node]


class BestOfN(Searcher):
    """Plays to the end several times from one turn on, and chooses an end."""

    name = "best-of-n"

    def _search(self, root: Node) -> Node:
        while root.turn < self._how.start and self._may_go_on(root):
            if (following := self._next(root)) is root:
                break
            root = following
        if not self._may_go_on(root):
            return root
        ends = []
        for number, env in enumerate(self._branches(root)):
            leaf = replace(root, env=env) if number else root
            while self._may_go_on(leaf) and (following := self._next(leaf)) is not leaf:
                leaf = following
            if leaf.number != root.number:
                self._judge(leaf)
                ends.append(leaf)
        best = max(ends, key=_goodness, default=root)
        self._let_go([best])
        return best

    def _branches(self, root: Node) -> list[HeldEnv]:
        try:
            return [root.env, *(root.env.fork(self._samples - 1) if self._samples > 1 else [])]
        except ForkError as error:
            root.lost = f"not forked: {error}"
            return [root.env]

    def _next(self, node: Node) -> Node:
        """Take the next action; return the same state if there is none."""
        for child in self._propose(node, 1):
            with suppress(ForkError):
                if not child.ends:
                    self._tree.tried += 1
                    child.env.step(child.action)
                return child
            child.lost = "the fork could not be started"
        return node


@dataclass(frozen=True, slots=True)
class SearchStrategy(Strategy):
    """A strategy that tries several replies in forks."""

    searcher: type[Searcher] = TreeSearch
    searches: ClassVar[bool] = True

    def agent(self, talk: Talk, options: Options, allowance: Allowance) -> Searcher:
        """Make the agent of one episode."""
        return self.searcher(talk, options, allowance)

    def __call__(self, model: Model | str, **options: Any) -> LanguageAgents:
        """Make the factory; see `Strategy`.

        Raises:
            UsageError: All proposals would be one and the same; or `choose` is given.
        """
        if "choose" in options:
            raise UsageError(f"agent {self.name} takes no --choose: it tries all that it proposes")
        options = {"samples": PROPOSALS, "search": Search(), "settings": Settings(), **options}
        return Strategy.__call__(self, model, **options)


TREE_SEARCH = SearchStrategy("tree-search", "react", React, examples="always", searcher=TreeSearch)
BEST_OF_N = SearchStrategy("best-of-n", "react", React, examples="always", searcher=BestOfN)
