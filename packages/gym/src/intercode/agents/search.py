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

from intercode.agents.conversation import Prompt, Talk
from intercode.agents.guarded_env import HeldEnv
from intercode.agents.language import Allowance, LanguageAgents, Options, Search, Strategy
from intercode.agents.strategies import React
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
    failure_reason: str = ""
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
    selected_node: Node | None = None
    action_count: int = 0
    """Actions that were taken."""

    def add(self, parent: Node | None, talk: Talk, env: HeldEnv, action: str = "") -> Node:
        """Add a state."""
        node = Node(len(self.nodes), parent, talk, env, action, _ends_episode(action))
        self.nodes.append(node)
        return node

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "chosen": None if self.selected_node is None else self.selected_node.number,
            "nodes": [
                {
                    "parent": None if node.parent is None else node.parent.number,
                    "turn": node.turn,
                    "action": str(node.action),
                    "judgement": node.judgement,
                    "tokens": node.tokens,
                    **({"lost": node.failure_reason} if node.failure_reason else {}),
                }
                for node in self.nodes
            ],
        }


def _ends_episode(action: str) -> bool:
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
        self._initial_talk = talk
        self._samples = options.samples
        self._search_options = options.search or Search()
        self._allowance = allowance
        self._tree = Tree()
        self._prompt = Prompt("search")
        self._replies = 0

    def run(self, env: HeldEnv) -> Episode:
        """Play the episode, and return the one of the branch that is chosen."""
        node = self._tree.add(None, self._initial_talk, env)
        while True:
            node = self._tree.selected_node = self._search(node)
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
        search_facts = {"agent": self.name, "tried": self._tree.action_count}
        return {**self._allowance.metadata(), "search": {**search_facts, **self._tree.to_dict()}}

    def _search(self, root: Node) -> Node:
        """Return the state to hand in, or whose last action ends the episode."""
        raise NotImplementedError

    def _can_continue(self, node: Node) -> bool:
        """Tell whether a state may be continued, within all limits."""
        options = self._search_options
        deep = options.depth is not None and node.turn >= options.depth
        return not (
            node.done
            or deep
            or self._tree.action_count >= options.budget
            or self._allowance.is_used_up()
        )

    def _propose(self, node: Node, count: int) -> list[Node]:
        """Ask for the next action several times; equal ones are one proposal. None is taken yet."""
        proposals: dict[str, Node] = {}
        transcript = self._allowance.transcript
        for _ in range(count):
            base_seed = self._initial_talk.dialogue.settings.seed
            talk = node.talk.branch(None if base_seed is None else base_seed + self._replies)
            self._replies += 1
            transcript.turn = len(node.env.episode.turns)
            previous_tokens = transcript.usage.total
            try:
                action = React(talk).act(node.env.observation, node.env.episode.turns)
            except ContextLengthError:
                if not node.env.episode.turns:
                    raise  # it has never acted: that is not an attempt
                self._allowance.reached_limit = "context"
                break
            if action in proposals:
                transcript.note(repeats=proposals[action].number)
            else:
                proposals[action] = self._tree.add(node, talk, node.env, action)
                transcript.note(node=proposals[action].number)
            proposals[action].tokens += transcript.usage.total - previous_tokens
        return [*proposals.values()]

    def _take(self, node: Node, children: Sequence[Node]) -> list[Node]:
        """Take each proposed action in a fork of its own; return those that could be tried."""
        acting_nodes = [child for child in children if not child.ends]
        acting_nodes = acting_nodes[: max(0, self._search_options.budget - self._tree.action_count)]
        ending_nodes = [child for child in children if child.ends]
        spare = (
            0 if ending_nodes or not acting_nodes else 1
        )  # the environment itself takes the last one
        try:
            forks = node.env.fork(len(acting_nodes) - spare) if len(acting_nodes) > spare else []
        except ForkError as error:
            for child in children[1:]:
                child.failure_reason = str(error)
            first_child = children[:1]
            acting_nodes, ending_nodes = (
                ([], [*first_child]) if first_child[0].ends else ([*first_child], [])
            )
            forks = []
        for child in children:
            if not child.ends and child not in acting_nodes and not child.failure_reason:
                child.failure_reason = "the budget was used up"
        envs = [*forks, node.env]
        tried_nodes = [*ending_nodes]
        for child, env in zip(acting_nodes, envs, strict=False):
            child.env = env
            self._tree.action_count += 1
            try:
                env.step(child.action)
            except ForkError as error:  # the fork could not be started
                child.failure_reason = str(error)
                continue
            tried_nodes.append(child)
        return sorted(tried_nodes, key=lambda child: child.number)

    def _judge(self, node: Node) -> None:
        """Judge a state, from 0 (hopeless) to 1."""
        parent = None if node.parent is None else node.parent.judgement
        if self._search_options.test is None:
            node.judgement = self._ask_judgement(node)
        elif not node.env.running or (node.ends and parent is not None):
            node.judgement = parent  # there is no turn left for a test; or it is the same state
        else:
            try:
                test_env = node.env.fork()[0]
                node.judgement = float(bool(test_env.step(self._search_options.test)[4].get("ok")))
                test_env.close()
            except ForkError as error:
                node.judgement, node.failure_reason = parent, f"not tested: {error}"

    def _ask_judgement(self, node: Node) -> float | None:
        """Ask the model how good a state is; None if its reply does not say."""
        transcript = self._allowance.transcript
        observation = None if node.ends else node.talk.clip(node.env.observation.rstrip("\n"))
        turns = node.env.episode.turns
        failed = bool(turns) and not turns[-1].ok
        question = self._prompt.render(
            "judge", observation=observation, failed=failed, finished=node.done
        )
        settings = replace(node.talk.dialogue.settings, temperature=0.0)
        transcript.turn = len(node.env.episode.turns)
        previous_tokens = transcript.usage.total
        try:
            messages = [*node.talk.dialogue.messages, Message("user", question)]
            verdict = transcript.complete(messages, settings)
        except ContextLengthError:
            return None
        node.tokens += transcript.usage.total - previous_tokens
        transcript.note(judges=node.number)
        number = re.search(r"\d+(?:\.\d+)?", verdict.text)
        return None if number is None else min(1.0, float(number[0]) / 10)

    def _close_others(self, retained_nodes: Iterable[Node]) -> None:
        """Close the forks of all other states."""
        retained_ids = {id(node.env) for node in retained_nodes}
        for node in self._tree.nodes:
            if id(node.env) not in retained_ids:
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
            if self._search_options.order == "beam":
                leaves = leaves[: self._search_options.width]
                self._close_others(leaves)
            open_leaves = [leaf for leaf in leaves if self._can_continue(leaf)]
            if not open_leaves or leaves[0].done:
                self._close_others(leaves[:1])
                return leaves[0]
            selected_leaves = (
                open_leaves if self._search_options.order == "beam" else open_leaves[:1]
            )
            leaves = [leaf for leaf in leaves if leaf not in selected_leaves]
            for leaf in selected_leaves:
                leaves += self._expand(leaf) if self._can_continue(leaf) else [leaf]

    def _expand(self, node: Node) -> list[Node]:
        """Return the states that follow, judged; the state itself if none does."""
        children = (
            self._take(node, proposals) if (proposals := self._propose(node, self._samples)) else []
        )
        for child in children:
            self._judge(child)
        return children or [node]


class BestOfN(Searcher):
    """Plays to the end several times from one turn on, and chooses an end."""

    name = "best-of-n"

    def _search(self, root: Node) -> Node:
        while root.turn < self._search_options.start and self._can_continue(root):
            if (next_node := self._advance(root)) is root:
                break
            root = next_node
        if not self._can_continue(root):
            return root
        ends = []
        for number, env in enumerate(self._branches(root)):
            leaf = replace(root, env=env) if number else root
            while self._can_continue(leaf) and (next_node := self._advance(leaf)) is not leaf:
                leaf = next_node
            if leaf.number != root.number:
                self._judge(leaf)
                ends.append(leaf)
        best = max(ends, key=_goodness, default=root)
        self._close_others([best])
        return best

    def _branches(self, root: Node) -> list[HeldEnv]:
        try:
            return [root.env, *(root.env.fork(self._samples - 1) if self._samples > 1 else [])]
        except ForkError as error:
            root.failure_reason = f"not forked: {error}"
            return [root.env]

    def _advance(self, node: Node) -> Node:
        """Take the next action; return the same state if there is none."""
        for child in self._propose(node, 1):
            with suppress(ForkError):
                if not child.ends:
                    self._tree.action_count += 1
                    child.env.step(child.action)
                return child
            child.failure_reason = "the fork could not be started"
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
            raise UsageError(f"agent {self.name} takes no --choose: it tries every proposed action")
        options = {"samples": PROPOSALS, "search": Search(), "settings": Settings(), **options}
        return Strategy.__call__(self, model, **options)


TREE_SEARCH = SearchStrategy("tree-search", "react", React, examples="always", searcher=TreeSearch)
BEST_OF_N = SearchStrategy("best-of-n", "react", React, examples="always", searcher=BestOfN)
