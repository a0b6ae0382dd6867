"""The container's game: one call is exactly one action, and the environment's result is passed on unchanged."""

from __future__ import annotations

from typing import Any, NamedTuple

from envlanes.episode.game import Game, Options
from envlanes.episode.turn import action_lookup
from envlanes.episode.values import copied, digest_of, options_for
from envlanes.returned import FIVE, FOUR, SUCCESS_KEYS, check_success, checked_reward, wrong_step
from envlanes.workers.codec import trust

trust("ragen.turns.")


class Shown(NamedTuple):
    """The observation of an environment after a reset or an action.

    Attributes:
        raw: The observation that ``reset`` or ``step`` returned; text, or a copied array.
        info: Its info.
        actions: The available actions, keys or texts; None if unchanged.
        names: The name of each key; empty if actions are text, None if unchanged.
    """

    raw: Any
    info: dict[str, Any]
    actions: list[Any] | None
    names: dict[Any, str] | None


class ActionResult(NamedTuple):
    """The result of an action; a replay must reproduce ``digest``, that of the observation."""

    reward: float
    done: bool
    digest: Any
    observation: Shown


class ActionGame(Game):
    """Environments with ``reset(seed)`` and ``step(action)``, whose actions are the keys or texts that ``step`` takes.

    ``reset`` may return an observation or ``(observation, info)``; ``step`` four values, or gymnasium's five.
    """

    def reset(self, env: Any, seed: int | None, options: Options) -> Shown:
        """Reset with the seed, and with those options that ``reset`` takes."""
        returned = env.reset(seed=seed, **options_for(env, options))
        is_pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)
        raw, info = returned if is_pair else (returned, {})
        return Shown(copied(raw), _detached(info), available_actions(env), dict(action_lookup(env) or {}))

    def play(self, env: Any, action: Any) -> ActionResult:
        """Execute one action.

        Raises:
            ReturnError: The values are not four or five, the reward is not finite, or success is no truth value.
        """
        returned = env.step(copied(action))
        expected = FIVE if isinstance(returned, tuple | list) and len(returned) == 5 else FOUR
        try:
            raw, reward, *ends, info = returned
            done, info = any(map(bool, ends)), _detached(info)
        except Exception as error:
            raise wrong_step(env, returned, expected) from error
        if len(ends) not in (1, 2):
            raise wrong_step(env, returned, expected)
        reward = checked_reward(env, reward)
        for key in SUCCESS_KEYS:
            check_success(env, info, key)
        changing = available_actions(env) if hasattr(env, "get_available_actions") else None
        shown = Shown(copied(raw), info, changing, None)
        return ActionResult(reward, done, self.digest(shown), shown)

    def digest(self, observation: Shown) -> Any:
        """A text itself; the digest of anything else."""
        return digest_of(observation.raw)


ACTIONS = ActionGame()


def available_actions(env: Any) -> list[Any]:
    """The texts of the page or the keys that an environment offers now; empty where any text will do."""
    for name in ("get_available_actions", "get_all_actions"):
        if (method := getattr(env, name, None)) is not None:
            return list(method())
    return list(action_lookup(env) or ())


def _detached(info: Any) -> dict[str, Any]:
    return {key: copied(value) for key, value in dict(info or {}).items()}
