"""What leaves producers, and what they are told."""

from __future__ import annotations

from typing import Any

from hadron.client.producing.accumulator import PartitionAccumulator
from hadron.client.producing.outgoing_batch import OutgoingBatch
from hadron.client.producing.router import Lane
from hadron.client.producing.sender import PartitionSender
from hadron.model.errors import HadronError
from hadron.sim.watch.known import Known, Wrappers


class HearsProducers:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (
                PartitionAccumulator,
                {
                    "_launch": self.launches,
                    "refused": self.refuses,
                    "take": self.parts_with,
                    "adopt": self.counts,
                    "acked": self.counts,
                    "_give_up": self.counts,
                },
            ),
            (OutgoingBatch, {"_done": self.resolves}),
            (Lane, {"take_over": self.moves}),
        ]

    def launches(self, original: Any) -> Any:
        def launch(accumulator: PartitionAccumulator, batch: OutgoingBatch) -> OutgoingBatch:
            self._known.sending.leaves(accumulator, batch)
            launched: OutgoingBatch = original(accumulator, batch)
            return launched

        return launch

    def refuses(self, original: Any) -> Any:
        def refused(
            accumulator: PartitionAccumulator, batch: OutgoingBatch, error: HadronError
        ) -> None:
            self._known.sending.failed(batch, error)
            original(accumulator, batch, error)
            self._known.sending.counted(accumulator)

        return refused

    def parts_with(self, original: Any) -> Any:
        def take(accumulator: PartitionAccumulator, *given: Any) -> Any:
            taken, under_way = original(accumulator, *given)
            for batch in taken:
                self._known.sending.taken(batch)
            self._known.sending.counted(accumulator)
            return taken, under_way

        return take

    def moves(self, original: Any) -> Any:
        def take_over(lane: Lane, away: PartitionSender) -> None:
            self._known.sending.is_twice = lane._twice
            original(lane, away)

        return take_over

    def counts(self, original: Any) -> Any:
        def change(accumulator: PartitionAccumulator, *given: Any) -> Any:
            result = original(accumulator, *given)
            self._known.sending.counted(accumulator)
            return result

        return change

    def resolves(self, original: Any) -> Any:
        def resolve(batch: OutgoingBatch, *given: Any) -> None:
            original(batch, *given)
            self._known.sending.resolved(batch)

        return resolve
