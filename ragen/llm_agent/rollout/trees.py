"""Rollouts that branch: turn by turn together, as the ordinary loop, but some environments go on in several ways.

::

    turn 2   0 ---- prompt --+-- reply --> env 0          one prompt, written once; as many replies as it is wide;
                             +-- reply --> env 8          env 8 is branched from env 0 before it is asked
             1 ---- prompt ----- reply --> env 1

What is branched where is :mod:`ragen.llm_agent.trees.policy`'s business; environments are branched by the manager, in
whichever process they live. Ids follow from the order of environments alone, so that equal replies give equal trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError
from ragen.llm_agent.config.branching import SECTION, BranchingSettings
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.rollout.actor import read_sampling
from ragen.llm_agent.rollout.lockstep import play_in_lockstep
from ragen.llm_agent.rollout.player import Rollout, RolloutLoop
from ragen.llm_agent.rollout.shared_prompts import SharedPrompts
from ragen.llm_agent.tokens.sampled_tokens import raw_reply
from ragen.llm_agent.trees.policy import OpenNode, Use, widths

if TYPE_CHECKING:
    from ragen.llm_agent.es_manager import EnvStateManager

Cache = dict[str, Any]


class TreeLoop(RolloutLoop):
    """Plays trees in the modes that the settings name, and chains in others.

    Attributes:
        settings: Where it branches.
        chains: What plays chains.
    """

    def __init__(self, settings: BranchingSettings, chains: RolloutLoop, config: Any) -> None:
        """Take the settings.

        Args:
            settings: Where it branches.
            chains: What plays chains.
            config: The whole configuration.

        Raises:
            ConfigError: Replies are not drawn, so that all branches would be the same.
        """
        self.settings = settings
        self.chains = chains
        scripted = setting(config, "actor.backend", str, None) == "scripted"  # which draws in its own way
        for mode in settings.modes:
            if not scripted and read_sampling(config, mode == "val").greedy:
                raise ConfigError(
                    f"{SECTION}.when is set, and the likeliest reply is taken in mode {mode} "
                    "(actor_rollout_ref.rollout: do_sample, temperature): all branches would be the same."
                )

    def new_es_manager(self, config: Any, mode: str) -> EnvStateManager:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""
        return self.chains.new_es_manager(config, mode)

    def play(self, rollout: Rollout) -> None:
        """See :class:`~ragen.llm_agent.rollout.player.RolloutLoop`."""
        if rollout.es_manager.mode in self.settings.modes:
            play_in_lockstep(rollout, _Growth(self.settings, rollout).play_turn)
        else:
            self.chains.play(rollout)


class _Growth:
    """The trees of one rollout while they grow."""

    def __init__(self, settings: BranchingSettings, rollout: Rollout) -> None:
        self._settings, self._player = settings, rollout.player
        self._es_manager, self._ctx_manager = rollout.es_manager, rollout.ctx_manager
        self._tree_of = {cache["env_id"]: cache["env_id"] for cache in rollout.episodes}
        self._used = {cache["env_id"]: Use(1, 0) for cache in rollout.episodes}

    def play_turn(self, active: Sequence[Cache], told: Mapping[str, Any]) -> tuple[list[Cache], list[Cache]]:
        """Branch, and play a turn; who played it, and who goes on."""
        shared = self._branched(active)
        playing = [cache for alike in shared for cache in alike]
        prompts = SharedPrompts(self._ctx_manager, shared, self._player.tokenizer)
        going_on = self._player.play_turn(self._es_manager, prompts, playing, told)
        for env_id, tokens in prompts.tokens.items():
            tree = self._tree_of[env_id]
            self._used[tree] = self._used[tree]._replace(tokens=self._used[tree].tokens + tokens)
        return playing, going_on

    def _branched(self, active: Sequence[Cache]) -> list[list[Cache]]:
        """Every environment with the branches that were made of it now; these share a prompt."""
        nodes = [_open_node(cache, self._tree_of[cache["env_id"]]) for cache in active]
        chosen = widths(nodes, self._used, self._settings)
        with self._player.timed("environments"), self._player.timeline.lanes(self._es_manager.lane_stats):
            return [
                [cache, *self._branches(node, width - 1)]
                for cache, node, width in zip(active, nodes, chosen, strict=True)
            ]

    def _branches(self, node: OpenNode, count: int) -> list[Cache]:
        if count == 0:
            return []
        env_ids = self._es_manager.branch(node.env_id, count)
        self._tree_of.update(dict.fromkeys(env_ids, node.tree))
        self._used[node.tree] = self._used[node.tree]._replace(leaves=self._used[node.tree].leaves + count)
        replies = getattr(self._player.actor, "replies", {})
        replies.update({env_id: list(replies.get(node.env_id, ())) for env_id in env_ids})
        return [self._es_manager.branches[env_id].cache for env_id in env_ids]


def _open_node(cache: Cache, tree: int) -> OpenNode:
    *played, _ = history = cache["history"]
    exchange = raw_reply(played[-1]).exchange if played else None
    known = exchange.log_probs if exchange is not None else None
    return OpenNode(cache["env_id"], tree, cache["tag"], len(played), -fmean(known) if known else None, history)
