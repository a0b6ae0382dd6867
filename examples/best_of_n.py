"""Best of n at a chosen turn: play an episode at random, branch it there, play on in every branch, and keep the best.

    python examples/best_of_n.py                                    # sokoban, 16 branches after turn 2
    python examples/best_of_n.py --env frozen_lake --turn 2 --copies 32 --parallel

Actions are drawn from the environment's own names and a seed, so that nothing needs a model; where one answers, the
loop is the same. What the branches share is played once.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

from ragen.errors import ConfigError, InputError
from ragen.llm_agent.es_manager import EnvStateManager

ACTIONS = 30  # of an episode


def main() -> int:
    """Play, branch, play on; print every branch, and the way of the best."""
    given = arguments()
    rng = random.Random(given.seed)
    with EnvStateManager(configuration(given.env, given.parallel), mode="val") as manager:
        manager.reset(given.seed)
        print(f"{given.env}, seed {given.seed}:\n{manager.render()[0]}\n")
        for _ in range(given.turn):
            if not manager.step([drawn(manager, 0, rng)]):
                break
        try:
            branches = manager.branch(0, given.copies, given.turn)
        except InputError as error:
            print(error)
            return 1
        shared = manager.branches[branches[0]].cache["history"]
        print(f"{given.copies} branches after turn {given.turn}:\n{shared[-1]['state']}\n")
        going_on = branches
        for _ in range(given.turns):
            if not going_on:
                break
            going_on = [cache["env_id"] for cache in manager.step([drawn(manager, each, rng) for each in going_on])]
        tell(manager, [cache for cache in manager.get_rollout_states() if cache["env_id"] in branches])
    return 0


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="sokoban", help="an environment that has action names (default: sokoban)")
    parser.add_argument("--seed", type=int, default=1013)
    parser.add_argument("--turn", type=int, default=2, help="where to branch; 0 is the beginning (default: 2)")
    parser.add_argument("--copies", type=int, default=16, help="how many branches (default: 16)")
    parser.add_argument("--turns", type=int, default=12, help="turns that each branch plays on (default: 12)")
    parser.add_argument("--parallel", action="store_true", help="in worker processes")
    return parser.parse_args()


def configuration(env_type: str, parallel: bool) -> dict[str, Any]:
    """One environment of a type, as ``EnvStateManager`` reads it."""
    part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["Game"], "n_groups": [1]}}
    return {
        "es_manager": {"use_multiprocessing": parallel, "train": part, "val": part},
        "custom_envs": {"Game": {"env_type": env_type, "max_actions_per_traj": ACTIONS}},
    }


def drawn(manager: EnvStateManager, env_id: int, rng: random.Random) -> dict[str, Any]:
    """A turn of one or two actions, as an answer would give them."""
    entry = manager.branches[env_id].entry if env_id in manager.branches else manager.envs[env_id]
    lookup = getattr(entry["config"], "action_lookup", None) or getattr(entry["env"].config, "action_lookup", None)
    if not lookup:
        raise SystemExit(f"{entry['tag']} takes any text; choose an environment whose actions have names.")
    actions = rng.choices(list(lookup.values()), k=rng.randint(1, 2))
    said = " || ".join(actions)
    return {"env_id": env_id, "actions": actions, "llm_response": said, "llm_raw_response": said}


def tell(manager: EnvStateManager, caches: list[dict[str, Any]]) -> None:
    """One line for each branch, best first, and the best one's way."""
    rewards = {each["env_id"]: sum(manager.branches[each["env_id"]].entry["status"].rewards) for each in caches}
    ranked = sorted(caches, key=lambda cache: (-rewards[cache["env_id"]], cache["env_id"]))
    for cache in ranked:
        metrics = cache["metrics"]
        success = "solved" if metrics["Game/success"] else ""
        print(f"env {cache['env_id']:>3}  reward {rewards[cache['env_id']]:7.2f}  {success}")
    best = ranked[0]
    own = best["history"][best["turn"] : -1]
    print(f"\nbest, env {best['env_id']}: {' | '.join(turn['llm_response'] for turn in own)}")
    print(best["history"][-1]["state"])


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except ConfigError as refused:  # such as an environment that there is not
        raise SystemExit(f"{refused}") from None
