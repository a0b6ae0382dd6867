"""As much of verl's transfer queue as a sampler asks, in memory."""

from support.later import tensordict, torch


class Queue:
    """A transfer queue."""

    def __init__(self):
        self.rows = {"train": {}, "val": {}}

    def add(self, scores, errors=None, partition="train", rows=1, status="finished"):
        """Add groups that have ended, by uid and in the order of seeds.

        Args:
            scores: The scores of each group's members.
            errors: ``env_error`` by uid and member, of those that failed.
            partition: Where.
            rows: Rows of each trajectory.
            status: Of the groups.
        """
        held = self.rows[partition]
        for seed, (uid, group) in enumerate(scores.items()):
            held[uid] = ({"is_prompt": True, "status": status, "global_steps": 1}, None)
            for member, score in enumerate(group):
                error = (errors or {}).get((uid, member), "")
                told = {"env_tag": "Maze", "env_seed": seed, "env_error": error}
                told["reward_extra_info"] = {"success": float(score > 0)}
                mask = torch.zeros(3) if error else torch.ones(3)
                value = {"extra_fields": told, "response_mask": mask, "rm_scores": torch.tensor([0.0, 0.0, score])}
                for row in range(rows):
                    held[f"{uid}_{member}_{row}"] = ({"status": "success", "seq_len": 9}, value)

    def kv_list(self):
        return {name: {key: tag for key, (tag, _) in held.items()} for name, held in self.rows.items()}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.rows[partition_id].pop(key, None)

    def kv_batch_get(self, keys, partition_id, select_fields):
        return tensordict.TensorDict(
            {name: self._column(keys, partition_id, name) for name in select_fields}, [len(keys)]
        )

    def _column(self, keys, partition_id, name):
        values = [self.rows[partition_id][key][1][name] for key in keys]
        if torch.is_tensor(values[0]):
            return torch.nested.as_nested_tensor(values, layout=torch.jagged)
        return tensordict.NonTensorStack(*map(tensordict.NonTensorData, values))
