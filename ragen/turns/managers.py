"""Managers: write prompts with histories for a container, and parse a model's texts into actions.

    manager = SokobanEnvironmentManager(envs, create_projection_function("sokoban"), "sokoban")
    observations, infos = manager.reset()          # {"text": prompts, "image": None, "anchor": what environments show}
    observations, rewards, dones, infos = manager.step(["<action>up</action>", None])   # None: no action

Prompts are written by :class:`~ragen.turns.step_prompts.StepPrompts`, texts are parsed by projections of
:mod:`~ragen.llm_agent.prompts.replies`. A manager is independent of processes. It works with any container that has
the interface of :class:`~ragen.turns.container.EnvironmentContainer`, and with any projection, including
verl-agent's; in place of the environments' name it accepts verl-agent's configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from envlanes.closing import Closing
from envlanes.returned import SUCCESS_KEYS, check_success
from ragen.errors import ConfigError, InputError, StateError
from ragen.llm_agent.prompts.replies import Projection
from ragen.turns.container import to_numpy
from ragen.turns.step_prompts import Facts, StepPrompts, StepTemplates, history_lines, step_templates
from ragen.validity import is_valid

HISTORY_LENGTH = 2

Observations = dict[str, Any]


class SimpleMemory:
    """The steps of each row of a batch, oldest first."""

    def __init__(self) -> None:
        """Hold no rows yet."""
        self._rows: list[list[dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> list[dict[str, Any]]:
        return self._rows[row]

    def reset(self, batch_size: int) -> None:
        """Begin with ``batch_size`` rows without steps."""
        self._rows = [[] for _ in range(batch_size)]

    def store(self, record: Mapping[str, Sequence[Any]]) -> None:
        """Add a step to every row.

        Args:
            record: For example ``{"text_obs": [...], "action": [...]}``, with a value for each row; a row whose values
                are all None made no step.
        """
        for row, steps in enumerate(self._rows):
            step = {key: values[row] for key, values in record.items()}
            if any(value is not None for value in step.values()):
                steps.append(step)

    def fetch(
        self, history_length: int, obs_key: str = "text_obs", action_key: str = "action"
    ) -> tuple[list[str], list[int]]:
        """The last steps of each row as text.

        Args:
            history_length: Maximum number of steps.
            obs_key: The key of observations.
            action_key: The key of actions.

        Returns:
            For each row a line per step, ``[Observation k: '...', Action k: '...']``, k counted from 1 since the reset;
            and the number of these lines.
        """
        shown = [history_lines(steps, history_length, obs_key, action_key) for steps in self._rows]
        return ["\n".join(lines) for lines in shown], list(map(len, shown))


class EnvironmentManagerBase(Closing):
    """Writes prompts, and parses the replies into actions; a context manager that closes its container.

    Class attributes: env_type: The type of all environments; None uses the container's type of each environment.
        skips_none: Whether ``step`` accepts None for environments that were not prompted.

    Attributes:
        envs: The container.
        projection_f: Maps texts to actions.
        env_name: Name of the environments.
        history_length: Maximum number of past steps in a prompt.
        memory: The observation before each action of each environment, and the action's name.
    """

    env_type: ClassVar[str | None] = None
    skips_none: ClassVar[bool] = True

    def __init__(
        self,
        envs: Any,
        projection_f: Projection,
        env_name: Any = None,
        *,
        history_length: int | None = None,
        templates: Mapping[str, Any] | StepTemplates | None = None,
    ) -> None:
        """Store the parts; nothing is reset.

        Args:
            envs: A container.
            projection_f: ``(texts, action_spaces) -> (actions, valids)``, or without ``action_spaces``.
            env_name: Name of the environments; or verl-agent's configuration, from which ``env.env_name`` and
                ``env.history_length`` are read.
            history_length: Maximum number of past steps in a prompt; 2 unless the configuration says otherwise.
            templates: Custom templates ``first`` and ``later``; for several types, those of each by name.

        Raises:
            ConfigError: A template cannot be filled in, or a length is not an integer.
        """
        given = _given_by(env_name)
        self.envs, self.projection_f = envs, projection_f
        self.env_name = given.get("env_name") or self.env_type or "environments"
        self.history_length = _checked_length(given.get("history_length"), history_length)
        self.memory = SimpleMemory()
        count = len(envs) if hasattr(envs, "__len__") else envs.num_processes
        types = getattr(envs, "env_types", None)
        self._types = [self.env_type or (types[row] if types else self.env_name) for row in range(count)]
        think = getattr(projection_f, "style", "ragen") != "ragen"
        self._writers = self._prompt_writers(think, templates)
        self._takes_spaces = _parameters(projection_f) >= 2
        self._tasks: list[str] = []
        self._names: list[Mapping[Any, str]] = []
        self._shown: list[Any] = []
        self._done: list[bool] = []

    # Episodes

    def reset(self, kwargs: Sequence[Mapping[str, Any] | None] | None = None) -> tuple[Observations, list[Any]]:
        """Begin a new episode in every environment.

        Args:
            kwargs: Options of each environment's reset, such as verl-agent's ``env_kwargs`` of a prompt.

        Returns:
            ``text`` (a prompt for each environment), ``image`` (None, or an array of their images), ``anchor`` (the raw
            observations), and infos.
        """
        shown, infos = self.envs.reset() if kwargs is None else self.envs.reset(options=list(kwargs))
        self._shown, self._done = list(shown), [_is_lost(info) for info in infos]
        self._names = list(self.envs.action_names()) if hasattr(self.envs, "action_names") else [{}] * len(self._types)
        self._tasks = [writer.task(first) for writer, first in zip(self._writers, self._shown, strict=True)]
        self.memory.reset(len(self._types))
        return self._observations(), list(infos)

    def step(self, text_actions: Sequence[str | None]) -> tuple[Observations, np.ndarray, np.ndarray, list[Any]]:
        """Parse the texts, and execute one action in each environment.

        Args:
            text_actions: One for each environment; None for environments without an action, which are not stepped. The
                list is not modified.

        Returns:
            Observations as from :meth:`reset`, rewards float64 ``(n,)``, dones bool ``(n,)``, and infos, each with
            ``is_action_valid``, an array without dimensions.

        Raises:
            InputError: There are too few or too many texts.
            StateError: There was no reset yet.
        """
        if not self._shown:
            raise StateError("there is no episode yet: call reset() first.")
        if isinstance(text_actions, str) or len(text_actions) != len(self._types):
            raise InputError(f"{len(text_actions)} texts were given for {len(self._types)} environments.")
        actions, valids = self._project(text_actions)
        shown, rewards, dones, infos = self.envs.step(actions)
        self._remember(text_actions, actions)
        self._shown, self._done = list(shown), list(map(bool, dones))
        detailed = [
            {**_with_shop_keys(env_type, info), "is_action_valid": to_numpy(valid)}
            for env_type, info, valid in zip(self._types, infos, valids, strict=True)
        ]
        return self._observations(), np.array(rewards, float), np.array(self._done, bool), detailed

    def _project(self, texts: Sequence[str | None]) -> tuple[list[Any], list[Any]]:
        """Actions and validity of all rows; only rows with a text are passed to the projection."""
        asked = [row for row, text in enumerate(texts) if text is not None]
        if hasattr(self.projection_f, "style"):
            return self.projection_f(list(texts), self._spaces())
        given: list[Any] = [[texts[row] for row in asked]]
        if self._takes_spaces:
            spaces = self._spaces()
            given.append([spaces[row] for row in asked])
        found_actions, found_valids = self.projection_f(*given) if asked else ([], [])
        actions: list[Any] = [None] * len(texts)
        valids: list[Any] = [True] * len(texts)
        for row, action, valid in zip(asked, found_actions, found_valids, strict=True):
            actions[row], valids[row] = action, valid
        return actions, valids

    def _spaces(self) -> list[Any]:
        pairs = zip(self._names, self._actions(), strict=True)
        return [dict(names) if names else actions for names, actions in pairs]

    def _actions(self) -> list[list[Any]]:
        if hasattr(self.envs, "get_available_actions"):
            return self.envs.get_available_actions()
        return [[] for _ in self._types]

    def _remember(self, texts: Sequence[str | None], actions: Sequence[Any]) -> None:
        """Store the observation and action of the rows that were stepped."""
        steps = [
            (writer.state(shown), writer.action(action, names)) if text is not None and not done else (None, None)
            for writer, shown, names, done, text, action in zip(
                *(self._writers, self._shown, self._names, self._done, texts, actions), strict=True
            )
        ]
        self.memory.store({"text_obs": [state for state, _ in steps], "action": [action for _, action in steps]})

    def _observations(self) -> Observations:
        facts = zip(self._tasks, self._shown, self._actions(), self._names, strict=True)
        texts = [
            writer.write(Facts(*fact, self.memory[row], self.history_length))
            for row, (writer, fact) in enumerate(zip(self._writers, facts, strict=True))
        ]
        return {"text": texts, "image": _images(self._shown), "anchor": list(self._shown)}

    # Results

    def success_evaluator(
        self,
        total_infos: Sequence[Sequence[Mapping[str, Any]]],
        total_batch_list: Sequence[Sequence[Mapping[str, Any]]],
        episode_rewards: Any = None,
        episode_lengths: Any = None,
    ) -> dict[str, np.ndarray]:
        """The success of trajectories, by the info of their last active step.

        Args:
            total_infos: The infos of each trajectory's steps.
            total_batch_list: Its rows, each with ``active_masks``.
            episode_rewards: Unused; part of the collectors' interface.
            episode_lengths: Unused; part of the collectors' interface.

        Returns:
            ``success_rate``, float ``(n,)``, and ``webshop_task_score (not success_rate)`` if all environments are
            WebShop.

        Raises:
            ReturnError: An info's success is neither true nor false.
        """
        last = [_last_info(*pair) for pair in zip(total_infos, total_batch_list, strict=True)]
        found = {"success_rate": np.array([self._success(info) for info in last], float)}
        if set(self._types) == {"webshop"}:
            scores = [float(info.get("task_score", 0.0)) for info in last]
            found["webshop_task_score (not success_rate)"] = np.array(scores, float)
        return found

    def _success(self, info: Mapping[str, Any]) -> float:
        key = next((key for key in SUCCESS_KEYS if key in info), None)
        if key is None:
            return 0.0
        check_success(self.envs, info, key)
        return float(info[key] or 0)

    @property
    def group_n(self) -> int | None:
        """Environments per group, if the container has groups."""
        return getattr(self.envs, "group_n", None)

    @property
    def tags(self) -> list[str]:
        """The tag of each environment, or its type."""
        return list(getattr(self.envs, "tags", self._types))

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self.envs.close()

    def __len__(self) -> int:
        return len(self._types)

    def _prompt_writers(self, think: bool, templates: Any) -> list[StepPrompts]:
        """A writer for each row; rows of a type with the same grid symbols share one."""
        configs = getattr(self.envs, "configs", [None] * len(self._types))
        writers: dict[Any, StepPrompts] = {}
        rows = []
        for env_type, config in zip(self._types, configs, strict=True):
            symbols = getattr(config, "grid_vocab", None) or {}
            key = (env_type, *symbols.items())
            if key not in writers:
                words = step_templates(env_type, think, symbols).replaced(_chosen(templates, env_type))
                writers[key] = StepPrompts(words, env_type)
            rows.append(writers[key])
        return rows


class SokobanEnvironmentManager(EnvironmentManagerBase):
    """Sokoban: one step a turn."""

    env_type = "sokoban"


class FrozenLakeEnvironmentManager(EnvironmentManagerBase):
    """FrozenLake: one step a turn."""

    env_type = "frozen_lake"


class BanditEnvironmentManager(EnvironmentManagerBase):
    """Bandit: one pull; the numbers of the arms depend on the seed."""

    env_type = "bandit"


class CountdownEnvironmentManager(EnvironmentManagerBase):
    """Countdown: one expression."""

    env_type = "countdown"


class MetaMathQAEnvironmentManager(EnvironmentManagerBase):
    """MetaMathQA: answers, until one is correct."""

    env_type = "metamathqa"


class WebShopEnvironmentManager(EnvironmentManagerBase):
    """WebShop: a search or click a turn; ``task_score`` and ``won`` are added to infos."""

    env_type = "webshop"


MANAGERS: dict[str, type[EnvironmentManagerBase]] = {
    str(manager.env_type): manager for manager in EnvironmentManagerBase.__subclasses__()
}
"""The manager of each type; other types, and mixed types, use the base class."""


def _given_by(given: Any) -> dict[str, Any]:
    """The name and history length of the third argument: a name or a configuration."""
    if given is None or isinstance(given, str):
        return {"env_name": given}
    section = given.get("env", {}) if hasattr(given, "get") else getattr(given, "env", {})
    read = section.get if hasattr(section, "get") else lambda name: getattr(section, name, None)
    return {name: read(name) for name in ("env_name", "history_length")}


def _checked_length(configured: Any, given: Any) -> int:
    length = given if given is not None else configured if configured is not None else HISTORY_LENGTH
    if isinstance(length, bool) or not isinstance(length, int):
        raise ConfigError(f"history_length = {length!r}: expected an integer; 0 shows no history.")
    return length


def _chosen(templates: Any, env_type: str) -> Mapping[str, str]:
    """The given templates for a type."""
    if isinstance(templates, Mapping) and all(isinstance(each, Mapping | StepTemplates) for each in templates.values()):
        templates = templates.get(env_type)
    return asdict(templates) if isinstance(templates, StepTemplates) else templates or {}


def _parameters(function: Any) -> int:
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return 1


def _with_shop_keys(env_type: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """The info with the keys that verl-agent adds for WebShop."""
    info = dict(info)
    if env_type == "webshop" and "success" in info:
        info.setdefault("task_score", float(info.get("raw_reward", info.get("reward", 0.0))))
        info.setdefault("won", bool(info["success"]))
    return info


def _last_info(infos: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    active = [info for info, row in zip(infos, rows, strict=True) if row["active_masks"]]
    return active[-1] if active else {}


def _is_lost(info: Any) -> bool:
    return isinstance(info, Mapping) and not is_valid(info)


def _images(shown: Sequence[Any]) -> np.ndarray | None:
    """The images of rows, as one array if all have the same size, else as an array of objects."""
    if not any(isinstance(each, np.ndarray) for each in shown):
        return None
    if len({each.shape if isinstance(each, np.ndarray) else None for each in shown}) == 1:
        return np.stack(shown)
    images = np.empty(len(shown), dtype=object)
    images[:] = shown
    return images
