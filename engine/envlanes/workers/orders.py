"""Orders: the batches of requests to the environments of one home, in the main process and in workers alike.

An order is created by the engine, sent as plain data (:mod:`envlanes.workers.codec`), and carried out on an
:class:`~envlanes.episode.host.EnvHost`, wherever that is. It maps each of its items to its environment, so that a
death or a missed deadline is attributed to the environment that was running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from envlanes.episode.host import EnvHost
from envlanes.episode.journal import EpisodeJournal
from envlanes.episode.outcome import Batch, Outcome, Raised
from envlanes.episode.pickled import PickledSpecs
from envlanes.episode.spec import EnvSpec, by_tag
from envlanes.interrupts import let_signals_pass
from envlanes.this_process import node_name


@dataclass(eq=False)
class Order:
    """One batch.

    Attributes:
        items: The requests; each starts with an env_id. A worker gets ``(env_id, Pickled)`` where one is not plain.
        loads: The classes and specs of tags that are loaded before, each an item too.
        phase: The operation, for messages.
        plays, rebuilds: Whether it plays turns, and whether it rebuilds environments from their journals.
        counts: Whether its time is counted.
    """

    phase: ClassVar[str]
    plays: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    rebuilds: ClassVar[bool] = False

    items: Sequence[Any] = ()
    loads: Sequence[PickledSpecs] = ()

    def __len__(self) -> int:
        return len(self.loads) + len(self.items)

    def envs_at(self, index: int) -> list[int]:
        """The environments of an item: one, or all of a tag that is loaded."""
        return self.loads[index].env_ids if self.is_load(index) else [self.items[index - len(self.loads)][0]]

    def run(self, host: EnvHost) -> list[Outcome]:
        """Carry it out: the host's method of this phase; an outcome for each environment that has one to report."""
        outcomes: list[Outcome] = getattr(host, self.phase)(self.items)
        return outcomes

    def carry_out(self, host: EnvHost) -> Batch:
        """:meth:`run`, with the time it took if the order counts."""
        outcomes = self.run(host)
        return Batch(outcomes, host.spent) if self.counts else Batch(outcomes)

    def is_load(self, index: int) -> bool:
        """Whether the item loads a tag."""
        return index < len(self.loads)


class Build(Order):
    """Build environments; items are ``(env_id, None)``."""

    phase = "build"


class Reset(Order):
    """Begin new episodes; items are :class:`.ResetOrder`."""

    phase = "reset"
    counts = True


class Play(Order):
    """Play turns; items are ``(env_id, action)``."""

    phase = "play"
    plays = counts = True


class Call(Order):
    """Call methods, set or read attributes; items are ``(env_id, Change)``."""

    phase = "call"


class Fork(Order):
    """Bring forks to the end of their journals; never sent, since a rebuild does all of it."""

    phase = "fork"


class Unload(Order):
    """Close environments and forget them; items are ``(env_id, None)``."""

    phase = "close"

    def run(self, host: EnvHost) -> list[Outcome]:
        """See :meth:`EnvHost.unload`."""
        host.unload([item[0] for item in self.items])
        return []


class Rebuild(Order):
    """Bring environments to the end of their journals: load those unknown to the host, and replay their episodes.

    Its items are ``(env_id, journal)``.
    """

    phase = "replay"
    rebuilds = True

    @classmethod
    def of(cls, specs: Sequence[EnvSpec], journals: Sequence[tuple[int, EpisodeJournal]]) -> Rebuild:
        """An order for a worker: specs are pickled by tag."""
        return cls(journals, [PickledSpecs.of(members) for members in by_tag(specs).values()])

    def run(self, host: EnvHost) -> list[Outcome]:
        """Load and replay; environments that could not be loaded are not replayed."""
        outcomes: dict[int, Outcome] = {}
        for index, part in enumerate(self.loads):
            host.mark(index)
            try:
                host.load(part.open())
                outcomes.update({env_id: Outcome(env_id, None) for env_id in part.env_ids})
            except BaseException as error:
                let_signals_pass(error)
                raised = _not_loaded(error)
                outcomes.update({env_id: Outcome(env_id, raised) for env_id in part.env_ids})
        for index, item in enumerate(self.items, len(self.loads)):
            if item[0] not in outcomes or outcomes[item[0]].value is None:
                outcomes[item[0]] = host.replay([item], index)[0]
        return list(outcomes.values())


class RebuildHere(Rebuild):
    """The same for the main process, where nothing is pickled."""

    def __init__(self, specs: Sequence[EnvSpec], journals: Sequence[tuple[int, EpisodeJournal]]) -> None:
        super().__init__(journals)
        self._specs = specs

    def run(self, host: EnvHost) -> list[Outcome]:
        """Load and replay."""
        host.load(self._specs)
        outcomes = {spec.env_id: Outcome(spec.env_id, None) for spec in self._specs}
        outcomes.update({outcome.env_id: outcome for outcome in host.replay(self.items)})
        return list(outcomes.values())


class CloseAll(Order):
    """Close all environments of an engine that is gone; has no items."""

    phase = "close"

    def run(self, host: EnvHost) -> list[Outcome]:
        """See :meth:`EnvHost.close`."""
        host.close()
        return []


def _not_loaded(error: BaseException) -> Raised:
    """The failure to load the classes of a tag; on another machine, a package may be missing."""
    raised = Raised.of(error, "load")
    if isinstance(error, ImportError) and (node := node_name()):
        advice = f"{raised.text} (on node {node}: install it there, or let Ray ship it with the job)"
        return replace(raised, text=advice)
    return raised
