"""CLIENTS K13: a step is committed behind those before it.

What a step's body has made of records must not stand before what is made of earlier ones: so
nobody asks for its commit while it is not known that those are committed whose outcome was open
when its body began. What had failed before that comes again, and is a step of its own then.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from hadron.client.consuming.steps import Step, Steps
from hadron.client.transactions.work import State, Work
from hadron.sim.watch.views import Complaints


class InSteps:
    """Every subscription that is taken in steps."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._open: WeakKeyDictionary[Steps, list[Step]] = WeakKeyDictionary()
        """Those without an outcome when the latest was given, and that one."""
        self._before: WeakKeyDictionary[Work, list[Step]] = WeakKeyDictionary()

    def given(self, steps: Steps, step: Step) -> None:
        """A body begins."""
        before = [
            each
            for each in self._open.get(steps, ())
            if each._work.state in (State.OPEN, State.COMMITTING)
        ]
        self._before[step._work] = before
        self._open[steps] = [*before, step]

    def commits(self, work: Work) -> None:
        """Its driver is to be asked to commit it."""
        if work.state is not State.OPEN:
            return
        for each in self._before.get(work, ()):
            if each._work.state is not State.COMMITTED:
                self._complaints.add(
                    "K13 a step is committed behind those before it",
                    f"transaction {work} is to be committed, and {each!r} before it is not",
                )
