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

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.branching import ENTROPY, SECTION, BranchingSettings
from ragen.llm_agent.rollout.actor import Actor, read_sampling, requests_of
from ragen.llm_agent.tokens.dataproto import PromptBatch, object_array
from ragen.llm_agent.tokens.sampled_tokens import RawReply, raw_reply
from ragen.llm_agent.trees.lineage import sizes
from ragen.llm_agent.trees.policy import OpenNode, Use, widths

if TYPE_CHECKING:
    from ragen.llm_agent.es_manager import EnvStateManager

Cache = dict[str, Any]


class GrowingTrees:
    """The trees of one rollout while they grow. The turns of a tree's leaves are played together."""

    def __init__(
        self,
        settings: BranchingSettings,
        es_manager: EnvStateManager,
        actor: Actor,
        tokenizer: Any,
        episodes: Sequence[Cache],
    ) -> None:
        """Begin with episodes that were just reset, each the root of a tree.

        Args:
            settings: Where it branches.
            es_manager: The environments.
            actor: Answers; what is known of an environment's replies is known of its branches'.
            tokenizer: Counts tokens of replies that came as texts.
            episodes: The caches of the roots.
        """
        self._settings, self._es_manager, self._actor, self._tokenizer = settings, es_manager, actor, tokenizer
        roots = [cache["env_id"] for cache in episodes]
        self._tree_of = {root: root for root in roots}
        self._used = dict.fromkeys(roots, Use(1, 0))
        self._asking: dict[int, list[list[Cache]]] = {root: [] for root in roots}
        self._prompt_tokens: dict[int, int] = {}
        self._over: dict[int, list[int]] = {root: [] for root in roots}

    def begin_turn(self, active: Sequence[Cache]) -> list[list[Cache]]:
        """Branch before a turn.

        Args:
            active: The leaves that go on, of each tree all or none. A tree whose last prompts got no reply, since the
                actor failed, is branched already.

        Returns:
            The caches of the leaves that play the turn; leaves that share a prompt are one list.
        """
        trees = dict.fromkeys(self._tree_of[cache["env_id"]] for cache in active)
        fresh = [cache for cache in active if not self._asking[self._tree_of[cache["env_id"]]]]
        for alike in self._branched(fresh):
            self._asking[self._tree_of[alike[0]["env_id"]]].append(alike)
        return [alike for tree in trees for alike in self._asking[tree]]

    def repeated(self, batch: Any, alike: Sequence[Sequence[Cache]]) -> Any:
        """Prompts as often as they are shared, each with the id of the environment that asks.

        Args:
            batch: The prompts, with their tokens; a row for each of ``alike``.
            alike: The caches of the leaves that share each prompt.
        """
        for caches, request in zip(alike, requests_of(batch), strict=True):
            self._prompt_tokens[caches[0]["env_id"]] = len(request.prompt_ids or ())
        places = [place for place, caches in enumerate(alike) for _ in caches]
        columns = {name: values[places] for name, values in batch.non_tensor_batch.items()}
        kind = columns["env_ids"].dtype
        columns["env_ids"] = object_array(cache["env_id"] for caches in alike for cache in caches).astype(kind)
        if isinstance(batch, PromptBatch):
            return PromptBatch(columns, batch.meta_info)
        return type(batch)(None if batch.batch is None else batch.batch[places], columns, batch.meta_info)

    def answered(self, inputs: Iterable[Mapping[str, Any]]) -> None:
        """Count the tokens of a turn of whole trees: each reply, and each shared prompt once.

        Args:
            inputs: The replies, as :meth:`~ragen.llm_agent.ctx_manager.ContextManager.get_env_inputs` reads them.
        """
        counted = {each["env_id"]: self._reply_size(each["llm_raw_response"]) for each in inputs}
        asking = [alike for tree in {self._tree_of[env_id] for env_id in counted} for alike in self._asking[tree]]
        for alike in asking:
            counted[alike[0]["env_id"]] += self._prompt_tokens[alike[0]["env_id"]]
        for env_id, tokens in counted.items():
            tree = self._tree_of[env_id]
            self._used[tree] = self._used[tree]._replace(tokens=self._used[tree].tokens + tokens)
            self._asking[tree] = []

    def _reply_size(self, raw: Any) -> int:
        exchange = raw.exchange if isinstance(raw, RawReply) else None
        if exchange is not None and exchange.has_tokens:
            return sizes(exchange)[1]
        return len(self._tokenizer([str(raw)], add_special_tokens=False)["input_ids"][0])

    def whole(self, over: Sequence[int], going_on: Collection[int]) -> list[int]:
        """The leaves of the trees that are over with these.

        Args:
            over: Environments whose episodes ended now.
            going_on: Environments that go on.

        Returns:
            By tree, its root last: where that was written down, the rest was.
        """
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
        replies = self._actor.replies
        replies.update({env_id: list(replies.get(node.env_id, ())) for env_id in env_ids})
        return [self._es_manager.branches[env_id].cache for env_id in env_ids]


def check_actor(config: Any, settings: BranchingSettings, actor: Actor) -> None:
    """See that the actor, as far as it can be known, draws replies and returns what trees need to know.

    Raises:
        ConfigError: Replies are not drawn, so that all branches would be the same; or their log-probabilities are not
            returned, which decide where it branches.
    """
    backend = actor.backend
    for mode in settings.modes:
        samples = backend is None or backend.samples
        if samples and read_sampling(config, mode == "val").greedy:
            raise ConfigError(
                f"{SECTION}.when is set, and the likeliest reply is taken in mode {mode} "
                "(actor_rollout_ref.rollout: do_sample, temperature): all branches would be equal."
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
