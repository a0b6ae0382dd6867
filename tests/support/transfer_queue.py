"""As much of verl's transfer queue as a training step asks, in memory."""

from support.later import tensordict, torch

SCORES = {"flat": [0.5, 0.5], "mixed": [0.0, 1.0], "low": [0.0, 0.1]}
NAMES = ("success", "env_reward", "turns", "num_actions", "env_failed", "env_seconds", "env_busy", "invalid_replies")
ANYWHERE = {"longest_wait": 0.0, **dict.fromkeys(NAMES, 0.0)}


class Queue:
    """As much of the transfer queue as samplers ask."""

    def __init__(self):
        self.rows = {"train": {}, "val": {}}

    def add(self, scores, partition="train", rows=1, tokens=3, extra=None):
        """Groups of trajectories with these scores, finished; the reward is the score without a penalty of 0.1."""
        held = self.rows[partition]
        for seed, (uid, group) in enumerate(scores.items()):
            held[uid] = ({"is_prompt": True, "status": "finished", "global_steps": 1}, None)
            for place, score in enumerate(group):
                numbers = ANYWHERE | {"score": score, "env_reward": score + 0.1}
                told = {"env_tag": uid.title(), "env_seed": seed, "env_error": "", "reward_extra_info": numbers}
                for row in range(rows):
                    mask = torch.tensor([1] * (tokens + row) + [0] * place)
                    value = {"extra_fields": told if extra is None else extra, "response_mask": mask}
                    held[f"{uid}_{place}_{row}"] = ({"status": "success", "seq_len": 9}, value)

    def kv_list(self):
        return {name: {key: tag for key, (tag, _) in held.items()} for name, held in self.rows.items()}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.rows[partition_id].pop(key, None)

    def kv_batch_put(self, keys, partition_id, fields):
        for name, column in fields.items():
            for key, value in zip(keys, column.unbind(), strict=True):
                self.rows[partition_id][key][1][name] = value

    def kv_batch_get(self, keys, partition_id, select_fields):
        held = [self.rows[partition_id][key][1] for key in keys]
        known = [name for name in select_fields if all(name in row for row in held)]
        return tensordict.TensorDict({name: self._column(keys, partition_id, name) for name in known}, [len(keys)])

    def _column(self, keys, partition_id, name):
        values = [self.rows[partition_id][key][1][name] for key in keys]
        if torch.is_tensor(values[0]):
            return torch.nested.as_nested_tensor(values, layout=torch.jagged)
        return tensordict.NonTensorStack(*map(tensordict.NonTensorData, values))
