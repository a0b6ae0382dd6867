"""Trees as values: who shares which turns, where to branch, and what siblings make of how it went."""

import pytest

from ragen.errors import ConfigError, InputError
from ragen.llm_agent.config.branching import BranchingSettings
from ragen.llm_agent.config.loading import decisive_settings
from ragen.llm_agent.rollout.metrics import mean_metrics
from ragen.llm_agent.trees.lineage import Forest, Node, Point, Segment, segment_advantages, segment_values
from ragen.llm_agent.trees.policy import OpenNode, Use, widths


def leaf(env_id, played, parent=None, turn=None, group=0, **others):
    """As much of a rollout cache as trees are read from."""
    history = [{"actions": [], "reward": 0.0} for _ in range(played)]
    lineage = {} if parent is None else {"parent": parent, "turn": turn}
    return {"env_id": env_id, "group_id": group, "tag": "Game", "history": [*history, {}], **lineage, **others}


# 0: turns 0 1 2 3, forked after 2 (to 4, which is forked after 3 again, to 5) and after 3 (to 6); 1: a chain
TREE = [leaf(0, 4), leaf(1, 2), leaf(4, 4, 0, 2), leaf(5, 4, 4, 3), leaf(6, 3, 0, 3)]
FOREST = Forest.of(TREE)


def test_turns_are_whose_they_were_played_by():
    assert [FOREST.owner(5, turn) for turn in range(4)] == [0, 0, 4, 5]
    assert [FOREST.owner(6, turn) for turn in range(3)] == [0, 0, 0]
    assert [FOREST.root(env_id) for env_id in (0, 1, 4, 5, 6)] == [0, 1, 0, 0, 0]


def test_points_are_where_trajectories_part_and_segments_lie_between_them():
    assert FOREST.points == {Point(0, 2): [0, 4], Point(4, 3): [4, 5], Point(0, 3): [0, 6]}
    assert FOREST.segments == [
        *(Segment(0, 0, 2), Segment(0, 2, 3), Segment(0, 3, 4)),
        *(Segment(1, 0, 2), Segment(4, 2, 3), Segment(4, 3, 4), Segment(5, 3, 4), Segment(6, 3, 3)),
    ]
    assert FOREST.segment_of(5, 2) == Segment(4, 2, 3) and FOREST.segment_of(5, 0) == Segment(0, 0, 2)


def test_a_branch_that_was_branched_before_it_played_parts_where_its_parent_did():
    forest = Forest.of([leaf(0, 3), leaf(2, 3, 0, 1), leaf(3, 3, 2, 1)])
    assert forest.points == {Point(0, 1): [0, 2, 3]}
    assert forest.weights == dict.fromkeys((0, 2, 3), pytest.approx(1 / 3))


def test_the_leaves_of_a_tree_weigh_as_much_as_the_chance_to_come_there():
    assert FOREST.weights == {0: 0.25, 6: 0.25, 4: 0.25, 5: 0.25, 1: 1.0}
    lopsided = Forest.of([leaf(0, 3), leaf(1, 3, 0, 0), leaf(2, 3, 0, 0), leaf(3, 3, 0, 2), leaf(4, 3, 2, 1)])
    assert lopsided.weights == {
        each: pytest.approx(share) for each, share in {0: 1 / 6, 3: 1 / 6, 1: 1 / 3, 2: 1 / 6, 4: 1 / 6}.items()
    }


@pytest.mark.parametrize("lineage", [(9, 1), (5, 1), ("0", 1), (0, 9), (0, -1), (0, None), ([], 0)])
def test_a_branch_without_its_parent_or_with_one_that_cannot_be_stands_for_itself(lineage):
    forest = Forest.of([leaf(0, 2), {**leaf(5, 2), "parent": lineage[0], "turn": lineage[1]}])
    assert forest.nodes[5] == Node(5, None, 0, 2, 0) and not forest.has_branches


def test_means_over_leaves_are_of_the_same_thing_as_over_chains():
    success = {0: 1.0, 6: 0.0, 4: 1.0, 5: 1.0, 1: 0.0}
    rollouts = [{**cache, "metrics": {"Game/success": success[cache["env_id"]]}} for cache in TREE]
    for root in (0, 1):
        rollouts[root]["metrics"]["Game/pass@2"] = 1.0
    means = mean_metrics(rollouts)
    assert means["Game/success"] == pytest.approx((0.75 + 0.0) / 2)
    assert means["Game/pass@2"] == 1.0 and means["Game/non-zero/success"] == 1.0


# Advantages


def test_segments_are_compared_with_those_that_began_where_they_began():
    scores = {0: 8.0, 6: 4.0, 4: 2.0, 5: 0.0, 1: 1.0}
    values = segment_values(FOREST, scores)
    assert values[Segment(0, 2, 3)] == 8.0, "6 got no reply: nothing is known of what else might have been said"
    assert (values[Segment(4, 2, 3)], values[Segment(0, 0, 2)]) == (1.0, 4.5)
    found = segment_advantages(FOREST, scores, by_std=False)
    assert found == {
        **{Segment(0, 0, 2): 1.75, Segment(1, 0, 2): -1.75},  # the reset, where members of a group begin alike
        **{Segment(0, 2, 3): 3.5, Segment(4, 2, 3): -3.5},
        **{Segment(4, 3, 4): 1.0, Segment(5, 3, 4): -1.0},
        Segment(0, 3, 4): 0.0,  # its sibling has no turn
    }
    divided = segment_advantages(FOREST, scores, by_std=True)
    assert divided[Segment(0, 2, 3)] == pytest.approx(0.5**0.5, abs=1e-5)


def test_chains_have_the_advantages_of_grpo():
    forest = Forest.of([leaf(env_id, 2, group=env_id // 3) for env_id in range(5)])
    found = segment_advantages(forest, {0: 1.0, 1: 0.0, 2: 0.5, 3: 7.0, 4: 7.0})
    assert list(found.values()) == pytest.approx([1, -1, 0, 0, 0], abs=1e-5)
    alone = Forest.of([leaf(0, 2)])
    assert list(segment_advantages(alone, {0: 5.0}).values()) == [0.0]


# Where to branch


def node(env_id=0, turn=1, tree=0, surprise=None):
    return OpenNode(env_id, tree, "Game", turn, surprise, [{}] * (turn + 1))


def told(**branching):
    return BranchingSettings.read({"agent_proxy": {"branching": branching}})


def odd_turns(point):
    return point.turn % 2 == 1


def three_at_the_reset(point):
    return 3 if point.turn == 0 else 1


def breaks(node):
    raise KeyError("nothing")


def says_nothing(point):
    return None


HERE = f"{__name__}:"
ROOM = {0: Use(1, 0), 1: Use(1, 0)}


@pytest.mark.parametrize(
    ("branching", "nodes", "used", "expected"),
    [
        ({"when": "every_turn"}, [node(turn=0), node(1, 3)], ROOM, [2, 2]),
        ({"when": "every_turn", "width": 4}, [node(turn=0)], ROOM, [4]),
        ({"when": "after_turn"}, [node(turn=0), node(1, 1), node(2, 2)], ROOM, [1, 2, 1]),
        ({"when": "after_turn", "turns": [0, 2]}, [node(turn=0), node(1, 1), node(2, 2)], ROOM, [2, 1, 2]),
        ({"when": "entropy", "threshold": 0.5}, [node(surprise=0.5), node(1, surprise=0.4)], ROOM, [2, 1]),
        ({"when": "entropy", "threshold": 0.5}, [node(turn=0)], ROOM, [1]),
        ({"when": f"{HERE}odd_turns", "width": 3}, [node(turn=1), node(1, 2)], ROOM, [3, 1]),
        ({"when": f"{HERE}three_at_the_reset"}, [node(turn=0), node(1, 1)], ROOM, [3, 1]),
        # room: a reply more for each in turns, as long as there is any; trees do not take each other's
        ({"when": "every_turn", "width": 4, "max_leaves": 6}, [node(), node(1)], {0: Use(2, 0)}, [3, 3]),
        ({"when": "every_turn", "width": 4, "max_leaves": 5}, [node(), node(1)], {0: Use(2, 0)}, [3, 2]),
        ({"when": "every_turn", "max_leaves": 2}, [node(), node(1), node(2, tree=1)], ROOM, [2, 1, 2]),
        ({"when": "every_turn", "max_leaves": 1}, [node()], ROOM, [1]),
        ({"when": "every_turn", "budget_tokens": 9}, [node(), node(1, tree=1)], {0: Use(1, 9), 1: Use(1, 8)}, [1, 2]),
        ({"when": "every_turn", "width": 10**12}, [node(), node(1)], {0: Use(2, 0)}, [4, 4]),
        ({"when": "every_turn"}, [], {}, []),
    ],
)
def test_where_it_branches_and_how_widely(branching, nodes, used, expected):
    assert widths(nodes, used, told(**branching)) == expected


def test_what_cannot_be_decided_is_told():
    with pytest.raises(InputError, match="did not return the log-probabilities of the reply of env_id = 7, turn 1"):
        widths([node(7)], ROOM, told(when="entropy", threshold=0.5))
    with pytest.raises(InputError, match=r"says_nothing.*answered None for env_id = 7"):
        widths([node(7)], ROOM, told(when=f"{HERE}says_nothing"))
    with pytest.raises(InputError, match=r"breaks.*raised for env_id = 7, turn 1: KeyError: 'nothing'"):
        widths([node(7)], ROOM, told(when=f"{HERE}breaks"))


# The keys


def test_rollouts_are_chains_unless_they_are_asked_to_branch():
    assert told() is None and told(width=3, when=None) is None
    config = {"agent_proxy": {"branching": {"when": None, "width": 3}}, "seed": 1}
    assert decisive_settings(config, ("agent_proxy", "seed")) == {"seed": 1}
    config["agent_proxy"]["branching"]["when"] = "every_turn"
    kept = {"agent_proxy.branching.when": "every_turn", "agent_proxy.branching.width": 3, "seed": 1}
    assert decisive_settings(config, ("agent_proxy", "seed")) == kept


@pytest.mark.parametrize(
    ("branching", "said"),
    [
        ({"when": "sometimes"}, "expected one of every_turn, after_turn, entropy, or package.module:function"),
        ({"when": f"{HERE}nowhere"}, "nowhere', which cannot be imported: AttributeError"),
        ({"when": f"{HERE}HERE"}, "which is not a function"),
        ({"when": "every_turn", "width": 1}, "width' is 1; expected at least 2"),
        ({"when": "every_turn", "max_leaves": 0}, "max_leaves' is 0; expected at least 1"),
        ({"when": "every_turn", "budget_tokens": 0}, "budget_tokens' is 0; expected at least 1"),
        ({"when": "every_turn", "advantages": "mean"}, "expected one of tree, grpo"),
        ({"when": "every_turn", "modes": ["test"]}, "modes' has 'test'; expected some of train, val"),
        ({"when": "after_turn", "turns": [-1]}, r"turns is \[-1\]; expected numbers of turns, 0 for the reset"),
        ({"when": "entropy"}, "threshold is None; 'entropy' needs"),
        ({"wehn": "every_turn"}, "branching.wehn' is not known; it has when, turns"),
    ],
)
def test_a_value_that_cannot_work_is_refused(branching, said):
    with pytest.raises(ConfigError, match=said):
        told(**branching)


@pytest.mark.parametrize("key", ["use_parallel_envs", "quirks"])
def test_what_plays_chains_alone_is_refused_beside_branching(key):
    config = {"agent_proxy": {"branching": {"when": "every_turn"}}, key: True}
    with pytest.raises(ConfigError, match=f"{key} is true, which supports only chains"):
        BranchingSettings.read(config)
