"""Members of groups that work in steps, and the transactions of these."""

from __future__ import annotations

from typing import Any

from hadron.client.consuming.steps import Step, Steps
from hadron.client.transactions.work import Work
from hadron.sim.watch.known import Known, Wrappers


class HearsMembers:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [(Steps, {"_next": self.gives}), (Work, {"commit": self.commits})]

    def gives(self, original: Any) -> Any:
        async def give(steps: Steps) -> Step | None:
            step: Step | None = await original(steps)
            if step is not None:
                self._known.in_steps.given(steps, step)
            return step

        return give

    def commits(self, original: Any) -> Any:
        async def commit(work: Work) -> None:
            self._known.in_steps.commits(work)
            await original(work)

        return commit
