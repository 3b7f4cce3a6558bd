"""Search over forks of an episode: the agent tries several actions, and continues the best state.

The model, or a test that the agent may see, judges the states. The reward is never used.

- *Tree search*: the model proposes several actions in each state, and a fork executes each action.
  A *beam* keeps the best states of a turn; *best-first* continues from the best state of all.
- *Best of n*: several forks play the episode to its end, starting after the same turn.

The model proposes actions by the prompts of the strategy ReAct.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from intercode.agents.conversation import Conversation, StrategyPrompts
from intercode.agents.guarded_env import AgentEnv
from intercode.agents.language import (
    EpisodeLimitTracker,
    ForkSearchOptions,
    LanguageAgents,
    PromptStrategy,
    StrategyOptions,
)
from intercode.agents.strategies import ReactAgent
from intercode.episode import Episode
from intercode.errors import ContextLengthError, ForkError, UsageError
from intercode.models.base import Message, Model, Settings

PROPOSALS = 3
"""The default of the option `samples`, which is the number of replies requested in each state."""


@dataclass(slots=True, eq=False)
class SearchNode:
    """A state of the search: a fork after an action, or a proposed action that ends the episode."""

    number: int
    parent: SearchNode | None
    talk: Conversation
    """The conversation up to the action, without its observation."""
    env: AgentEnv
    action: str = ""
    ends: bool = False
    """Whether the action ends the episode. Such an action is executed only if this node is
    chosen."""
    judgement: float | None = None
    """The judgement of the state in [0, 1]; None: not judged, or no judgement was obtained."""
    tokens: int = 0
    """The number of tokens that proposals and judgements of this state used."""
    failure_reason: str = ""
    """The reason why the action or the test could not be executed; empty: no failure."""

    @property
    def done(self) -> bool:
        """Whether no further action is possible."""
        return self.ends or not self.env.running

    @property
    def turn(self) -> int:
        """The number of turns so far."""
        return 0 if self.parent is None else self.parent.turn + 1


@dataclass(slots=True)
class SearchTree:
    """All states of an episode's search, for the record."""

    nodes: list[SearchNode] = field(default_factory=list)
    selected_node: SearchNode | None = None
    action_count: int = 0
    """The number of executed actions, over all forks."""

    def add(
        self, parent: SearchNode | None, talk: Conversation, env: AgentEnv, action: str = ""
    ) -> SearchNode:
        """Add a state, and return its node."""
        node = SearchNode(len(self.nodes), parent, talk, env, action, _ends_episode(action))
        self.nodes.append(node)
        return node

    def to_dict(self) -> dict[str, Any]:
        """Return the tree in plain JSON types."""
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


class ForkSearchAgent:
    """An agent that plays one episode by a search over forks of the episode.

    Args:
        talk: The conversation with the model, still empty.
        options: The options; `samples` is the number of proposals for a state.
        allowance: The limits of the episode.
    """

    name: ClassVar[str]

    def __init__(
        self, talk: Conversation, options: StrategyOptions, allowance: EpisodeLimitTracker
    ) -> None:
        self._initial_talk = talk
        self._samples = options.samples
        self._search_options = options.search or ForkSearchOptions()
        self._allowance = allowance
        self._tree = SearchTree()
        self._prompt = StrategyPrompts("search")
        self._replies = 0

    def run(self, env: AgentEnv) -> Episode:
        """Play the episode, and return the episode of the chosen branch."""
        node = self._tree.add(None, self._initial_talk, env)
        while True:
            node = self._tree.selected_node = self._search(node)
            if node.env.running:
                node.env.step(node.action if node.ends else "submit")
            if not node.env.running:
                return node.env.episode
            # The episode still runs, because the environment rejected the submitted answer.
            node.ends = False

    def leave_out(self, seconds: float) -> None:
        """Exclude seconds of waiting from the time limit."""
        self._allowance.leave_out(seconds)

    def episode_metadata(self) -> dict[str, Any]:
        """Return the transcript and the search tree."""
        search_facts = {"agent": self.name, "tried": self._tree.action_count}
        return {**self._allowance.metadata(), "search": {**search_facts, **self._tree.to_dict()}}

    def _search(self, root: SearchNode) -> SearchNode:
        """Search from a state, and return the best state found.

        The caller submits the returned state, or executes the action of the state that ends the
        episode.
        """
        raise NotImplementedError

    def _can_continue(self, node: SearchNode) -> bool:
        """Return whether a state may be continued within all limits."""
        options = self._search_options
        is_at_depth_limit = options.depth is not None and node.turn >= options.depth
        return not (
            node.done
            or is_at_depth_limit
            or self._tree.action_count >= options.budget
            or self._allowance.is_used_up()
        )

    def _propose(self, node: SearchNode, count: int) -> list[SearchNode]:
        """Request several actions for a state, and return a node for each distinct action.

        No action is executed.
        """
        proposals: dict[str, SearchNode] = {}
        transcript = self._allowance.transcript
        for _ in range(count):
            base_seed = self._initial_talk.dialogue.settings.seed
            talk = node.talk.branch(None if base_seed is None else base_seed + self._replies)
            self._replies += 1
            transcript.turn = len(node.env.episode.turns)
            previous_tokens = transcript.usage.total
            try:
                action = ReactAgent(talk).act(node.env.observation, node.env.episode.turns)
            except ContextLengthError:
                if not node.env.episode.turns:
                    # Without any action, the agent made no attempt, so the episode is an error.
                    raise
                self._allowance.reached_limit = "context"
                break
            if action in proposals:
                transcript.note(repeats=proposals[action].number)
            else:
                proposals[action] = self._tree.add(node, talk, node.env, action)
                transcript.note(node=proposals[action].number)
            proposals[action].tokens += transcript.usage.total - previous_tokens
        return [*proposals.values()]

    def _take(self, node: SearchNode, children: Sequence[SearchNode]) -> list[SearchNode]:
        """Execute each proposed action in a separate fork, or in the state's own environment.

        Actions that end the episode, and actions beyond the budget, are not executed. If the
        episode cannot be forked, only the first proposal is considered.

        Returns:
            The nodes whose actions were executed, or end the episode.
        """
        acting_nodes = [child for child in children if not child.ends]
        acting_nodes = acting_nodes[: max(0, self._search_options.budget - self._tree.action_count)]
        ending_nodes = [child for child in children if child.ends]
        # The state's own environment executes the last action, which therefore needs no fork.
        unused_nodes = 0 if ending_nodes or not acting_nodes else 1
        try:
            forks = (
                node.env.fork(len(acting_nodes) - unused_nodes)
                if len(acting_nodes) > unused_nodes
                else []
            )
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

    def _judge(self, node: SearchNode) -> None:
        """Set a state's judgement, from 0 (hopeless) to 1."""
        parent = None if node.parent is None else node.parent.judgement
        if self._search_options.test is None:
            node.judgement = self._ask_judgement(node)
        elif not node.env.running or (node.ends and parent is not None):
            # The state has no turn left for a test; or its action was not executed, so the state
            # equals the parent's state.
            node.judgement = parent
        else:
            try:
                test_env = node.env.fork()[0]
                node.judgement = float(bool(test_env.step(self._search_options.test)[4].get("ok")))
                test_env.close()
            except ForkError as error:
                node.judgement, node.failure_reason = parent, f"not tested: {error}"

    def _ask_judgement(self, node: SearchNode) -> float | None:
        """Request the model's judgement of a state.

        The result is None if the reply has no number, or the request exceeds the context length.
        """
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
        match = re.search(r"\d+(?:\.\d+)?", verdict.text)
        return None if match is None else min(1.0, float(match[0]) / 10)

    def _close_others(self, retained_nodes: Iterable[SearchNode]) -> None:
        """Close the forks of all states except `retained_nodes`."""
        retained_ids = {id(node.env) for node in retained_nodes}
        for node in self._tree.nodes:
            if id(node.env) not in retained_ids:
                node.env.close()


def _quality_key(node: SearchNode) -> tuple[float, bool, int]:
    """Return the sort key by which a better state is greater.

    The judgement decides first. Of equally judged states, finished states come first, then states
    that were found earlier.
    """
    return node.judgement or 0.0, node.done, -node.number


class TreeSearchAgent(ForkSearchAgent):
    """A tree search: it tries several actions in each state, each in a fork."""

    name = "tree-search"

    def _search(self, root: SearchNode) -> SearchNode:
        leaves = [root]
        while True:
            leaves.sort(key=_quality_key, reverse=True)
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

    def _expand(self, node: SearchNode) -> list[SearchNode]:
        """Return the judged successors of a state; if the state has none, the state itself."""
        children = (
            self._take(node, proposals) if (proposals := self._propose(node, self._samples)) else []
        )
        for child in children:
            self._judge(child)
        return children or [node]


class BestOfNAgent(ForkSearchAgent):
    """A best-of-n search, which plays several forks from one turn to the end, and chooses one."""

    name = "best-of-n"

    def _search(self, root: SearchNode) -> SearchNode:
        while root.turn < self._search_options.start and self._can_continue(root):
            if (next_node := self._advance(root)) is root:
                break
            root = next_node
        if not self._can_continue(root):
            return root
        ends = []
        for branch_index, env in enumerate(self._branches(root)):
            leaf = replace(root, env=env) if branch_index else root
            while self._can_continue(leaf) and (next_node := self._advance(leaf)) is not leaf:
                leaf = next_node
            if leaf.number != root.number:
                self._judge(leaf)
                ends.append(leaf)
        best_leaf = max(ends, key=_quality_key, default=root)
        self._close_others([best_leaf])
        return best_leaf

    def _branches(self, root: SearchNode) -> list[AgentEnv]:
        try:
            return [root.env, *(root.env.fork(self._samples - 1) if self._samples > 1 else [])]
        except ForkError as error:
            root.failure_reason = f"not forked: {error}"
            return [root.env]

    def _advance(self, node: SearchNode) -> SearchNode:
        """Execute the model's next action in a state, and return the new state.

        If no action could be executed, the result is the same state.
        """
        for child in self._propose(node, 1):
            with suppress(ForkError):
                if not child.ends:
                    self._tree.action_count += 1
                    child.env.step(child.action)
                return child
            child.failure_reason = "the fork could not be started"
        return node


@dataclass(frozen=True, slots=True)
class ForkSearchStrategy(PromptStrategy):
    """A strategy that tries several replies in forks."""

    searcher: type[ForkSearchAgent] = TreeSearchAgent
    searches: ClassVar[bool] = True

    def agent(
        self, talk: Conversation, options: StrategyOptions, allowance: EpisodeLimitTracker
    ) -> ForkSearchAgent:
        """Make the agent of one episode."""
        return self.searcher(talk, options, allowance)

    def __call__(self, model: Model | str, **options: Any) -> LanguageAgents:
        """Make the factory of the strategy's agents; see `PromptStrategy`.

        Raises:
            UsageError: All proposals would be equal (temperature 0), or `choose` is given.
        """
        if "choose" in options:
            raise UsageError(f"agent {self.name} takes no --choose: it tries every proposed action")
        options = {
            "samples": PROPOSALS,
            "search": ForkSearchOptions(),
            "settings": Settings(),
            **options,
        }
        return PromptStrategy.__call__(self, model, **options)


TREE_SEARCH = ForkSearchStrategy(
    "tree-search", "react", ReactAgent, examples="always", searcher=TreeSearchAgent
)
BEST_OF_N = ForkSearchStrategy(
    "best-of-n", "react", ReactAgent, examples="always", searcher=BestOfNAgent
)
