"""Takes the facts of ``tests/data/reference`` from the large recordings in ``../shared/golden``.

    python tests/make_reference_facts.py

What is taken: seeds, configurations, actions and other numbers as they are, and of every text a digest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ragen.env import REGISTERED_ENVS
from support import golden
from support import reference_facts as facts

Record = dict[str, Any]

RESETS, PLAYS = 40, 12  # of each tag
SESSIONS = 2
PATHS = {"countdown": "train_path", "metamathqa": "dataset_path"}


def questions() -> dict[str, int]:
    path = golden.GOLDEN / "inputs" / "metamathqa" / "train.jsonl"
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return {row["query"]: index for index, row in enumerate(rows)}


def is_number(text: str | None) -> bool:
    """Whether an answer may be written down as it is."""
    return text is not None and text.lstrip("-").isdecimal()


class Maker:
    """Reads the recordings of both generations."""

    def __init__(self) -> None:
        self._questions = questions()

    def own_words(self, state: Any) -> Any:
        """The state that our data shows where the recording shows this one."""
        place = self._questions.get(state) if isinstance(state, str) else None
        return state if place is None else facts.question(place)

    # One environment at a time

    def data(self) -> list[Record]:
        rows = json.loads((golden.GOLDEN / "inputs" / "countdown" / "rows.json").read_text())["rows"]
        countdown = [[row["nums"], row["target"], row["kept_by_filter"]] for row in rows]
        path = golden.GOLDEN / "inputs" / "metamathqa" / "train.jsonl"
        responses = [json.loads(line)["response"] for line in path.read_text("utf-8").splitlines()]
        ends = [response.rpartition("The answer is: ")[2] for response in responses]
        answers = [end if is_number(end) else "0" for end in ends]
        return [{"kind": "countdown", "rows": countdown}, {"kind": "metamathqa", "answers": answers}]

    def tag(self, version: str, tag: str) -> Record | None:
        found = golden.resets(version, tag)
        env_type, fields = found.header["template"]["env_type"], found.env_config
        if env_type not in REGISTERED_ENVS:
            return None
        record = {"version": version, "tag": tag, "env_type": env_type}
        if env_type in PATHS:
            record["data"] = PATHS[env_type]
        own = ("cache_dir", PATHS.get(env_type))
        record["env_config"] = {key: value for key, value in fields.items() if key not in own}
        taken = found.valid() + (found.retried() if env_type == "sokoban" else [])
        taken = [reset for reset in taken if "answer" not in reset or is_number(reset["answer"])]
        begins = {reset["seed"]: (reset.get("retry") or [reset["seed"]])[-1] for reset in taken}
        record["resets"] = [
            [begins[reset["seed"]], facts.digest(facts.shown(self.own_words(reset["state"])))]
            for reset in taken[:RESETS]
        ]
        record["indices"] = [[reset["seed"], reset["index"]] for reset in taken[:RESETS] if "index" in reset]
        record["refused"] = [reset["seed"] for reset in found.refused()]
        plays = [play for play in found.steps if play["seed"] in begins][:PLAYS]
        record["plays"] = [self._play(play, begins[play["seed"]]) for play in plays]
        return record

    def _play(self, play: Record, seed: int) -> Record:
        given = [
            facts.step_facts(
                self.own_words(step["obs"]),
                self.own_words(step["obs"] if step["render"] is None else step["render"]),
                step["reward"],
                step["done"],
                step["info"],
            )
            for step in play["steps"]
        ]
        actions = [step["a"] for step in play["steps"]]
        return {"seed": seed, "anew": play["reset_before_each"], "actions": actions, "digest": facts.digest(given)}

    def shop(self, version: str, folder: str) -> Record:
        """What a shop draws: prices, goals in their order, and the goal of each seed; of its texts nothing."""
        products, goals = [], []
        for record in golden.records("up25", folder, "goals.jsonl.gz"):
            {"goal": goals, "product": products}.get(record["kind"], []).append(record)
        numbers = {product["asin"]: number for number, product in enumerate(products)}
        wished = {goal["asin"] for goal in goals}
        listed = [
            [
                product["pricing"],
                [len(product["options"][name]) for name in sorted(product["options"])],
                product["asin"] in wished,
            ]
            for product in products
        ]
        drawn = [[numbers[goal["asin"]], float(goal["price_upper"])] for goal in goals]
        resets = [reset for reset in golden.records(version, folder, "resets.jsonl.gz") if reset["kind"] == "reset"]
        return {
            "kind": "shop",
            "version": version,
            "name": folder,
            "price_seed": 12345,
            "products": listed,
            "prices": facts.digest([product["price"] for product in products]),
            "goals": [len(goals), facts.digest(drawn)],
            "goal_of_seed": [[reset["seed"], reset["mode"], reset["goal_index"]] for reset in resets][::5],
        }

    # Rollouts

    def sessions(self, version: str, tag: str) -> list[Record]:
        found = []
        for session in golden.sessions(version, tag):
            header = session.header
            known = all(
                golden.template(version, name.removesuffix("Multi"))["env_type"] in REGISTERED_ENVS
                for name in header["tags"]
            )
            if known and len(found) < SESSIONS:
                found.append(self._session(version, tag, session))
        return found

    def _session(self, version: str, tag: str, session: golden.Session) -> Record:
        keys = ("mode", "base_seed", "tags", "n_groups", "group_size", "format_penalty", "max_actions")
        return {
            "version": version,
            "name": tag,
            **{key: session.header[key] for key in keys},
            "events": list(self._events(session.events)),
        }

    def _events(self, events: list[Record]) -> Any:
        left_out: set[int] = set()
        for event in events:
            if event["kind"] == "reset":
                left_out = {entry["env_id"] for entry in event["envs"] if entry["retry"]}
            kept = [entry for entry in event["envs"] if entry["env_id"] not in left_out]
            taken = {"kind": event["kind"]}
            if event["kind"] == "reset":
                counters = [event["seed_counter_before"], event["seed_counter_after"]]
                taken |= {"seed": event["seed_arg"], "counters": counters}
                taken["envs"] = [[entry["env_id"], self._begun(entry)] for entry in kept]
            elif event["kind"] == "step":
                taken["outputs"] = [env_id for env_id in event["outputs"] if env_id not in left_out]
                taken["envs"] = [[entry["env_id"], entry["actions"], self._played(entry)] for entry in kept]
            else:
                taken["envs"] = [[entry["env_id"], self._ended(entry)] for entry in kept]
            yield taken

    def _own(self, entry: Record) -> Record:
        return entry | {"state": self.own_words(entry["state"])}

    def _begun(self, entry: Record) -> str:
        return facts.digest(
            facts.begun(entry["tag"], entry["group_id"], entry["seed"], entry["penalty"], self._own(entry))
        )

    def _played(self, entry: Record) -> str:
        turn = facts.turn_of_2025(entry)
        return facts.digest(facts.played(turn, entry["status"], entry["penalty"], self._own(entry)))

    def _ended(self, entry: Record) -> str:
        return facts.digest(facts.ended(facts.end_of_2025(entry), entry["status"]))


def loops() -> list[Record]:
    """RAGEN 2026's rollouts: what its workers were told of each batch, and the columns that came of it."""
    found = []
    for path in sorted((golden.GOLDEN / "contexts" / "loop").glob("rollout_*.json")):
        recorded = json.loads(path.read_text("utf-8"))
        config = json.loads((path.parents[1] / "configs" / "up26" / f"{recorded['config']}.json").read_text("utf-8"))
        calls = [call for call in recorded["calls"] if call["call"] == "proxy.generate_sequences"]
        told = [call["returns"]["DataProto"]["meta_info"] for call in calls]
        proxy = config["agent_proxy"] | {
            key.removeprefix("agent_proxy."): value
            for key, value in recorded["overrides"].items()
            if key.startswith("agent_proxy.")
        }
        columns = recorded["update"]["columns"]
        found.append(
            {
                "name": path.stem.removeprefix("rollout_"),
                "val": recorded["val"],
                "collapse": recorded["include_collapse_data"],
                "proxy": {
                    key: proxy[key] for key in ("max_turn", "enable_think", "context_window_mode", "max_context_window")
                },
                "turns": [len(state["history"]) - 1 for state in recorded["rollout_states"]],
                "told": [[each["mode"], each.get("skip_generation", False)] for each in told],
                "batch": {key: value[0] for key, value in columns["batch"].items()},
                "columns": {key: value[0] for key, value in columns["non_tensor"].items()},
            }
        )
    return found


def main() -> None:
    if not golden.GOLDEN.is_dir():
        raise SystemExit(f"the recordings are not there: {golden.GOLDEN}")
    maker = Maker()
    envs = maker.data()
    shops = [("up25", "webshop_synth"), ("up26", "webshop_synth"), ("up25", "webshop_small1000")]
    envs += [maker.shop(version, folder) for version, folder in shops]
    rollouts = []
    for version in facts.VERSIONS:
        names = [tag for tag in golden.tags(version, "resets") if not tag.startswith("_")]
        envs += [record for tag in names if (record := maker.tag(version, tag)) is not None]
        for tag in golden.tags(version, "rollouts"):
            if tag != "_offcontract":
                rollouts += maker.sessions(version, tag)
    print("envs", len(envs), facts.write_lines("envs", envs), "bytes")
    found = loops()
    print("loops", len(found), facts.write_lines("loops", found), "bytes")
    print("rollouts", len(rollouts), facts.write_lines("rollouts", rollouts), "bytes")


if __name__ == "__main__":
    main()
