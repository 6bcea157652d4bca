"""Listens to a run, and tells those who judge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hadron.sim.notes.wrapping import wrapped
from hadron.sim.watch.hearing.commands import HearsCommands
from hadron.sim.watch.hearing.disks import HearsDisks
from hadron.sim.watch.hearing.groups import HearsGroups
from hadron.sim.watch.hearing.logs import HearsLogs
from hadron.sim.watch.hearing.members import HearsMembers
from hadron.sim.watch.hearing.nodes import HearsNodes
from hadron.sim.watch.hearing.pipelines import HearsPipelines
from hadron.sim.watch.hearing.producers import HearsProducers
from hadron.sim.watch.hearing.schema import HearsSchema
from hadron.sim.watch.hearing.tables import HearsTables
from hadron.sim.watch.hearing.transactions import HearsTransactions
from hadron.sim.watch.hearing.wires import HearsWires
from hadron.sim.watch.known import Known
from hadron.sim.watch.tallies import tallying

_HEARERS = (
    HearsNodes,
    HearsTables,
    HearsCommands,
    HearsTransactions,
    HearsGroups,
    HearsMembers,
    HearsPipelines,
    HearsProducers,
    HearsSchema,
    HearsLogs,
    HearsDisks,
    HearsWires,
)


class Watcher:
    """Hears everything."""

    def __init__(self) -> None:
        self._known = Known()
        self.histories = self._known.histories
        self.hearers = tuple(hearer(self._known) for hearer in _HEARERS)

    @property
    def violations(self) -> list[str]:
        return self._known.complaints.found

    def complain(self, rule: str, text: str) -> None:
        self._known.complaints.add(rule, text)

    def judge(self) -> None:
        """At the end of a run: what takes its whole history."""
        self._known.judging(self._known.transactions.judge)
        self._known.judging(self.histories.judge)


@contextmanager
def watching() -> Iterator[Watcher]:
    """Watch all nodes of all worlds for the length of the block; open worlds inside of it."""
    watcher = Watcher()
    with ExitStack() as undo:
        for hearer in watcher.hearers:
            for owner, wrappers in hearer.wrappers():
                undo.enter_context(wrapped(owner, **wrappers))
        undo.enter_context(tallying(watcher.complain))
        yield watcher
