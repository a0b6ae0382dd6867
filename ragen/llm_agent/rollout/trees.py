"""Rollouts that branch: before a turn is asked for, some environments are made several, which go on in several ways.

::

    turn 2   0 ---- prompt --+-- reply --> env 0          one prompt, written once; as many replies as it is wide;
                             +-- reply --> env 6          env 6 is branched from env 0 before it is asked
             1 ---- prompt ----- reply --> env 1

What is branched where is :mod:`ragen.llm_agent.trees.policy`'s business; environments are branched by the manager, in
whichever process they live. The turns of a tree's leaves are played together; different trees may be at different
turns. What a tree becomes, the ids of its branches among it, follows from its own replies alone: equal replies give
equal trees, in whatever company they grow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.branching import ENTROPY, SECTION, BranchingSettings
from ragen.llm_agent.rollout.actor import Actor, read_sampling, requests_of
from ragen.llm_agent.rollout.player import Growth, Rollout, Schedule
from ragen.llm_agent.tokens.dataproto import object_array
from ragen.llm_agent.tokens.prompt_batch import AnyBatch, PromptBatch
from ragen.llm_agent.tokens.sampled_tokens import RawReply, raw_reply
from ragen.llm_agent.trees.counts import sizes
from ragen.llm_agent.trees.policy import OpenNode, Use, widths

if TYPE_CHECKING:
    from verl import DataProto

    from ragen.llm_agent.es_manager import EnvStateManager
    from ragen.llm_agent.rollout.player import PromptWriter

Cache = dict[str, Any]


class Trees(Schedule):
    """Plays trees in the modes that the settings name, and chains in others.

    Attributes:
        settings: Where it branches.
        chains: What plays chains.
        turns: What plays the turns of trees.
    """

    def __init__(
        self, settings: BranchingSettings, chains: Schedule, turns: Schedule, config: Any, actor: Actor
    ) -> None:
        """Take the settings.

        Args:
            settings: Where it branches.
            chains: What plays chains.
            turns: What plays the turns of trees: asks a rollout's ``growth`` before each.
            config: The whole configuration.
            actor: Answers the prompts.

        Raises:
            ConfigError: Replies are not drawn, so that all branches would be the same; or nobody will tell how sure the
                actor was of them, which decides where it branches.
        """
        self.settings = settings
        self.chains = chains
        self.turns = turns
        _check_actor(config, settings, actor)

    def new_es_manager(self, config: Any, mode: str) -> EnvStateManager:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`."""
        return self.chains.new_es_manager(config, mode)

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.Schedule`."""
        if rollout.es_manager.mode in self.settings.modes:
            self.turns.play(replace(rollout, growth=GrowingTrees(self.settings, rollout)))
        else:
            self.chains.play(rollout)


class GrowingTrees(Growth):
    """The trees of one rollout while they grow."""

    def __init__(self, settings: BranchingSettings, rollout: Rollout) -> None:
        """Begin with the rollout's episodes, each the root of a tree.

        Args:
            settings: Where it branches.
            rollout: What is played.
        """
        self._settings, self._player = settings, rollout.player
        self._es_manager, self._ctx_manager = rollout.es_manager, rollout.ctx_manager
        roots = [cache["env_id"] for cache in rollout.episodes]
        self._tree_of = {root: root for root in roots}
        self._used = dict.fromkeys(roots, Use(1, 0))
        self._asking: dict[int, list[list[Cache]]] = {root: [] for root in roots}
        self._over: dict[int, list[int]] = {root: [] for root in roots}

    def begin_turn(self, active: Sequence[Cache]) -> tuple[list[Cache], SharedPrompts]:
        """See :class:`~ragen.llm_agent.rollout.player.Growth`."""
        trees = dict.fromkeys(self._tree_of[cache["env_id"]] for cache in active)
        fresh = [cache for cache in active if not self._asking[self._tree_of[cache["env_id"]]]]
        for alike in self._branched(fresh):
            self._asking[self._tree_of[alike[0]["env_id"]]].append(alike)
        shared = [alike for tree in trees for alike in self._asking[tree]]
        playing = [cache for alike in shared for cache in alike]
        return playing, SharedPrompts(self._ctx_manager, shared, self._player.tokenizer, self._answered)

    def _answered(self, tokens: Mapping[int, int]) -> None:
        """Take down what a turn took, by env_id."""
        for env_id, count in tokens.items():
            tree = self._tree_of[env_id]
            self._used[tree] = self._used[tree]._replace(tokens=self._used[tree].tokens + count)
            self._asking[tree] = []

    def whole(self, over: Sequence[int], going_on: Collection[int]) -> list[int]:
        """See :class:`~ragen.llm_agent.rollout.player.Growth`."""
        for env_id in over:
            self._over[self._tree_of[env_id]].append(env_id)
        grow = {self._tree_of[env_id] for env_id in going_on}
        trees = dict.fromkeys(self._tree_of[env_id] for env_id in over)
        return [leaf for tree in trees if tree not in grow for leaf in sorted(self._over[tree], reverse=True)]

    def _branched(self, active: Sequence[Cache]) -> list[list[Cache]]:
        """Every environment with the branches that were made of it now; these share a prompt."""
        nodes = [_open_node(cache, self._tree_of[cache["env_id"]]) for cache in active]
        chosen = widths(nodes, self._used, self._settings)
        return [
            [cache, *self._branches(node, width - 1)] for cache, node, width in zip(active, nodes, chosen, strict=True)
        ]

    def _branches(self, node: OpenNode, count: int) -> list[Cache]:
        if count == 0:
            return []
        env_ids = self._es_manager.branch(node.env_id, count)
        self._tree_of.update(dict.fromkeys(env_ids, node.tree))
        self._used[node.tree] = self._used[node.tree]._replace(leaves=self._used[node.tree].leaves + count)
        replies = self._player.actor.replies
        replies.update({env_id: list(replies.get(node.env_id, ())) for env_id in env_ids})
        return [self._es_manager.branches[env_id].cache for env_id in env_ids]


def _check_actor(config: Any, settings: BranchingSettings, actor: Actor) -> None:
    """See that the actor, as far as it can be known, draws replies and tells what trees need to know."""
    backend = actor.backend
    for mode in settings.modes:
        samples = backend is None or backend.samples
        if samples and read_sampling(config, mode == "val").greedy:
            raise ConfigError(
                f"{SECTION}.when is set, and the likeliest reply is taken in mode {mode} "
                "(actor_rollout_ref.rollout: do_sample, temperature): all branches would be the same."
            )
    missing = backend.lacks_log_probs if backend is not None else ""
    if settings.when == ENTROPY and missing:
        raise ConfigError(
            f"{SECTION}.when is {ENTROPY!r}, which needs the log-probabilities of replies' tokens, and {missing}."
        )


def _open_node(cache: Cache, tree: int) -> OpenNode:
    *played, _ = history = cache["history"]
    exchange = raw_reply(played[-1]).exchange if played else None
    known = exchange.log_probs if exchange is not None else None
    return OpenNode(cache["env_id"], tree, cache["tag"], len(played), -fmean(known) if known else None, history)


class SharedPrompts:
    """Writes the prompts of one turn, and reads the replies.

    Attributes:
        tokens: Environment id to what its turn took: its reply, and of those that share a prompt the first one the
            prompt too. Known once the replies were read.
    """

    def __init__(
        self,
        ctx_manager: PromptWriter,
        shared: Sequence[Sequence[Cache]],
        tokenizer: Any,
        on_read: Callable[[Mapping[int, int]], None],
    ) -> None:
        """Take who shares a prompt.

        Args:
            ctx_manager: Writes and reads.
            shared: The rollout caches of those that play, in stretches of such that stand at the same point.
            tokenizer: Counts the tokens of replies of which nobody tells them.
            on_read: Is told ``tokens`` as soon as the replies were read.
        """
        self._ctx_manager = ctx_manager
        self._shared = shared
        self._tokenizer = tokenizer
        self._on_read = on_read
        self.tokens: dict[int, int] = {}

    def get_prompts(self, _: Sequence[Cache], with_tokens: bool = True) -> PromptBatch:
        """See :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_prompts`; a row for each reply to ask for.

        Tokens are there in any case, since trees count them.
        """
        return self._repeated(self._ctx_manager.get_prompts([alike[0] for alike in self._shared]))

    def get_lm_inputs(self, _: Sequence[Cache]) -> DataProto:
        """See :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_lm_inputs`; a row for each reply to ask for."""
        return self._repeated(self._ctx_manager.get_lm_inputs([alike[0] for alike in self._shared]))

    def _repeated(self, batch: Any) -> Any:
        """Every row as often as its prompt is shared, each with the id of who asks."""
        for alike, request in zip(self._shared, requests_of(batch), strict=True):
            self.tokens |= {cache["env_id"]: 0 for cache in alike}
            self.tokens[alike[0]["env_id"]] = len(request.prompt_ids or ())
        places = [place for place, alike in enumerate(self._shared) for _ in alike]
        columns = {name: values[places] for name, values in batch.non_tensor_batch.items()}
        kind = columns["env_ids"].dtype
        columns["env_ids"] = object_array(cache["env_id"] for alike in self._shared for cache in alike).astype(kind)
        if isinstance(batch, PromptBatch):
            return PromptBatch(columns, batch.meta_info)
        return type(batch)(None if batch.batch is None else batch.batch[places], columns, batch.meta_info)

    def get_env_inputs(self, lm_outputs: AnyBatch) -> list[dict[str, Any]]:
        """See :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_env_inputs`."""
        inputs = self._ctx_manager.get_env_inputs(lm_outputs)
        for each in inputs:
            self.tokens[each["env_id"]] += self._reply_size(each["llm_raw_response"])
        self._on_read(self.tokens)
        return inputs

    def _reply_size(self, raw: Any) -> int:
        exchange = raw.exchange if isinstance(raw, RawReply) else None
        if exchange is not None and exchange.has_tokens:
            return sizes(exchange)[1]
        return len(self._tokenizer([str(raw)], add_special_tokens=False)["input_ids"][0])
