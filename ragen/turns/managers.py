"""Managers: write prompts with histories for a container, and parse a model's texts into actions.

    manager = SokobanEnvironmentManager(envs, create_projection_function("sokoban"), "sokoban")
    observations, infos = manager.reset()          # {"text": prompts, "image": None, "anchor": what environments show}
    observations, rewards, dones, infos = manager.step(["<action>up</action>", None])   # None: no action

Prompts are written by :class:`~ragen.turns.prompts.StepPrompts`, texts are parsed by projections of
:mod:`~ragen.llm_agent.prompts.replies`. A manager is independent of processes. It works with any container that has
the interface of :class:`~ragen.turns.container.EnvironmentContainer`, and with any projection, including
verl-agent's; in place of the environments' name it accepts verl-agent's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from envlanes.closing import Closing
from envlanes.ragen.step import success_of
from ragen.config.loading import as_config
from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.prompts.replies import Projection
from ragen.turns.container import one_each, to_numpy
from ragen.turns.prompts import StepPrompts

Observations = dict[str, Any]


class EnvironmentManagerBase(Closing):
    """Writes prompts, and parses the replies into actions; a context manager that closes its container.

    Class attributes: env_type: The type of all environments; None uses the container's type of each environment.

    Attributes:
        envs: The container.
        projection_f: Maps texts to actions.
        env_name: Name of the environments; None if there is none.
        history_length: Maximum number of past steps in a prompt.
        group_n: Environments per group.
        tags: The tag of each environment.
    """

    env_type: ClassVar[str | None] = None

    def __init__(
        self, envs: Any, projection_f: Projection, env_name: Any = None, *, templates: Mapping[str, Any] | None = None
    ) -> None:
        """Store the parts; nothing is reset.

        Args:
            envs: A container.
            projection_f: ``(texts, action_spaces) -> (actions, valids)``; one that is not of this package gets the
                texts alone.
            env_name: Name of the environments; or a configuration, also verl-agent's, from which ``env.env_name`` and
                ``env.history_length`` are read: the maximum number of past steps in a prompt, 2 by default.
            templates: Custom texts, see :class:`~ragen.turns.prompts.StepPrompts`.

        Raises:
            ConfigError: A text cannot be filled in, or a key has an invalid value.
        """
        is_name = isinstance(env_name, str | None)
        config = as_config({"env": {"env_name": env_name}} if is_name else env_name, ("env",))
        self.env_name, self.history_length = config.select("env.env_name") or self.env_type, config.env.history_length
        self.envs, self.projection_f = envs, projection_f
        self.group_n, self.tags = envs.group_n, [spec.tag for spec in envs.specs]
        self._style = getattr(projection_f, "style", None)
        games = ((self.env_type or spec.env_type, spec.config) for spec in envs.specs)
        thinks = self._style == "verl-agent"
        self._prompts = StepPrompts(games, self.history_length, thinks, templates or {})

    # Episodes

    def reset(self, kwargs: Sequence[Mapping[str, Any] | None] | None = None) -> tuple[Observations, list[Any]]:
        """Begin a new episode in every environment.

        Args:
            kwargs: Options of each environment's reset, such as verl-agent's ``env_kwargs`` of a prompt.

        Returns:
            ``text`` (a prompt for each environment), ``image`` (None, or an array of their images), ``anchor`` (the raw
            observations), and infos.
        """
        shown, infos = self.envs.reset(options=kwargs)
        for row, seen in enumerate(shown):
            self._prompts.add(row, seen)
        return self._observations(shown), infos

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
        texts = one_each("text_actions", text_actions, len(self))
        names = self.envs.action_names()
        spaces = [each or actions for each, actions in zip(names, self.envs.get_available_actions(), strict=True)]
        said = [text or "" for text in texts]
        found, valids = self.projection_f(said, spaces) if self._style else self.projection_f(said)
        actions = [None if text is None else action for text, action in zip(texts, found, strict=True)]
        shown, rewards, dones, infos = self.envs.step(actions)
        for row, (text, action) in enumerate(zip(texts, actions, strict=True)):
            if text is not None and "finished" not in infos[row]:
                told = names[row].get(action, "none") if names[row] else action
                self._prompts.add(row, shown[row], str(told))
        judged = [{**info, "is_action_valid": to_numpy(valid)} for info, valid in zip(infos, valids, strict=True)]
        return self._observations(shown), np.array(rewards, float), np.array(dones, bool), judged

    def _observations(self, shown: Sequence[Any]) -> Observations:
        offered = zip(self.envs.action_names(), self.envs.get_available_actions(), strict=True)
        texts = [self._prompts.write(row, *each) for row, each in enumerate(offered)]
        return {"text": texts, "image": _images(shown), "anchor": shown}

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
            ``success_rate``, float ``(n,)``.
        """
        last = [
            [info for info, row in zip(infos, rows, strict=True) if row["active_masks"]][-1:]
            for infos, rows in zip(total_infos, total_batch_list, strict=True)
        ]
        return {"success_rate": np.array([float(any(map(success_of, infos))) for infos in last])}

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self.envs.close()

    def __len__(self) -> int:
        return len(self.envs)


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
    """WebShop: a search or click a turn."""

    env_type = "webshop"


MANAGERS: dict[str, type[EnvironmentManagerBase]] = {
    str(manager.env_type): manager for manager in EnvironmentManagerBase.__subclasses__()
}
"""The manager of each type; other types, and mixed types, use the base class."""


def _images(shown: Sequence[Any]) -> np.ndarray | None:
    """The images of rows, as one array if all have the same size, else as an array of objects."""
    shapes = {each.shape if isinstance(each, np.ndarray) else None for each in shown}
    if shapes == {None}:
        return None
    return np.stack(shown) if len(shapes) == 1 else object_array(shown)
