"""The container's game: one call is exactly one action, and the environment's result is passed on unchanged."""

from __future__ import annotations

from typing import Any, NamedTuple

from envlanes.episode.game import Game, Options
from envlanes.episode.values import copied
from envlanes.gym.digests import detached, digest_of
from envlanes.ragen.step import SUCCESS_KEYS, check_success, checked_reward
from envlanes.ragen.turn import action_lookup, options_for
from envlanes.returned import wrong_step
from envlanes.workers.codec import trust

trust("ragen.turns.")


class Observed(NamedTuple):
    """The observation of an environment after a reset or an action.

    Attributes:
        raw: The observation that ``reset`` or ``step`` returned; text, or a copied array.
        info: Its info.
        actions: The available actions, keys or texts.
        names: The name of each key; empty if actions are text.
    """

    raw: Any
    info: dict[str, Any]
    actions: list[Any]
    names: dict[Any, str]


class ActionResult(NamedTuple):
    """The result of an action; a replay must reproduce ``digest``, that of the observation."""

    reward: float
    done: bool
    digest: Any
    observation: Observed


class ActionGame(Game):
    """Environments with ``reset(seed)`` and ``step(action)``, whose actions are the keys or texts that ``step`` takes.

    ``reset`` may return an observation or ``(observation, info)``.
    """

    def reset(self, env: Any, seed: int | None, options: Options) -> Observed:
        """Reset with the seed, and with those options that ``reset`` takes; a seed among them is the seed."""
        match env.reset(**{"seed": seed, **options_for(env, options)}):
            case (raw, dict(info)):
                return shown_by(env, raw, info)
            case raw:
                return shown_by(env, raw, {})

    def play(self, env: Any, action: Any) -> ActionResult:
        """Execute one action.

        Raises:
            ReturnError: The values are not four, the reward is not finite, or success is no truth value.
        """
        returned = env.step(copied(action))
        try:
            raw, reward, done, info = returned
            done, info = bool(done), dict(info or {})
        except Exception as error:
            raise wrong_step(env, returned) from error
        reward = checked_reward(env, reward)
        for key in SUCCESS_KEYS:
            check_success(env, info, key)
        shown = shown_by(env, raw, info)
        return ActionResult(reward, done, self.digest(shown), shown)

    def digest(self, observation: Observed) -> Any:
        """A text itself; the digest of anything else."""
        return digest_of(observation.raw)


ACTIONS = ActionGame()


def shown_by(env: Any, raw: Any, info: dict[str, Any]) -> Observed:
    """An observation, and what the environment offers now: texts, keys, or nothing if any text will do."""
    names = dict(action_lookup(env) or {})
    offered: Any = getattr(env, "get_available_actions", None) or getattr(env, "get_all_actions", names.keys)
    return Observed(detached(raw), detached(info), list(offered()), names)
