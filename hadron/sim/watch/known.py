"""What is known of a run while it is listened to, and everybody who judges it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from hadron.partition.controller import Controller
from hadron.partition.observers import Observers
from hadron.sim.model.histories import Histories
from hadron.sim.watch.answers import Answers
from hadron.sim.watch.awaited import Awaited
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.branches import Branches
from hadron.sim.watch.confirming import Confirming
from hadron.sim.watch.copies import Copies
from hadron.sim.watch.cursors import Cursors
from hadron.sim.watch.entries import Acknowledged, Ends, Entries
from hadron.sim.watch.feeds import Feeds
from hadron.sim.watch.flows import Flows
from hadron.sim.watch.flushes import Flushes
from hadron.sim.watch.given import Given
from hadron.sim.watch.handing import Handing
from hadron.sim.watch.in_steps import InSteps
from hadron.sim.watch.judged import Judged
from hadron.sim.watch.leases import Leases
from hadron.sim.watch.meanings import Meanings
from hadron.sim.watch.reads_on import ReadsOn
from hadron.sim.watch.records import Records
from hadron.sim.watch.repairs import Repairs
from hadron.sim.watch.sending import Sending
from hadron.sim.watch.serving import Serving
from hadron.sim.watch.transactions import Transactions
from hadron.sim.watch.views import Complaints, NodeView

Wrappers = list[tuple[Any, dict[str, Callable[[Any], Any]]]]
"""What is wrapped, and by its functions' names who hears of them."""


class Known:
    """
    Attributes:
        views: every node by its name, as it was opened last.
        by_part: each node by the parts that it is made of.
        leaders: who leads, by whoever is told of its events.
        mixed: nodes whose disks lied about syncs and lost power: their files' pages may be of
            different times, which no database survives, and each of them is sound.
    """

    def __init__(self) -> None:
        self.complaints = Complaints()
        self.views: dict[str, NodeView] = {}
        self.by_part: dict[Any, NodeView] = {}
        self.leaders: dict[Observers, Controller] = {}
        self.mixed: set[str] = set()
        ends, acknowledged = Ends(), Acknowledged()
        self.ballots = Ballots(self.complaints, self.views)
        self.answers = Answers(self.complaints, self.ballots, ends, acknowledged)
        self.meanings = Meanings(self.complaints, self.ballots)
        self.flows = Flows(self.complaints, self.views)
        self.leases = Leases(self.complaints)
        self.awaited = Awaited(self.complaints)
        self.cursors = Cursors(self.complaints, self.awaited)
        self.entries = Entries(
            self.complaints, ends, acknowledged, self.meanings, self.flows, self.cursors
        )
        self.serving = Serving(self.complaints, self.ballots, acknowledged)
        self.confirming = Confirming(self.complaints, self.ballots)
        self.handing = Handing(self.complaints)
        self.reads_on = ReadsOn(self.complaints)
        self.in_steps = InSteps(self.complaints)
        self.sending = Sending(self.complaints)
        self.records = Records(self.complaints, self.ballots)
        self.judged = Judged(self.complaints)
        self.given = Given(self.complaints)
        self.feeds = Feeds(self.complaints)
        self.flushes = Flushes(self.complaints, self.ballots, self.views)
        self.branches = Branches(self.complaints, self.ballots)
        self.repairs = Repairs(self.complaints, self.branches)
        self.copies = Copies(self.complaints, self.views, self.branches)
        self.transactions = Transactions(self.complaints, self.ballots)
        self.histories = Histories(self.complaints.add)

    def judging(self, judge: Callable[..., None], *given: Any) -> None:
        """What goes wrong here is nobody's damage."""
        try:
            judge(*given)
        except apsw.Error:
            raise
        except Exception as error:
            self.complaints.add("who watches is at fault", f"{type(error).__name__}: {error}")
