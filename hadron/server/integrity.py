"""Serves `hadron.v1.Integrity` to operators: a running node verifies itself, a leader has the
tables of its replicas compared with its own. What nodes ask of each other is in `replication`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from hadron.model.errors import NotReadyError
from hadron.model.words import counted
from hadron.partition.controller import Controller
from hadron.replication.repair import Repairer
from hadron.replication.scrub import Scrubber
from hadron.serving.digests import go_round
from hadron.serving.entrance import Led, led
from hadron.serving.leading import Leading, missing_majority
from hadron.storage.report import Report
from hadron.wire.calls import Call
from hadron.wire.messages import check_number, integrity_pb2
from hadron.wire.services import Served, served

_Verify: TypeAlias = Call[integrity_pb2.VerifyRequest, integrity_pb2.VerifyResponse]
_Compare: TypeAlias = Call[integrity_pb2.CompareTablesRequest, integrity_pb2.CompareTablesResponse]

_BYTES_PER_S: Final = 128 << 20
"""Somebody waits; more than that would take the disk from those who write."""

_TOLD_EVERY: Final = 16
"""Slices from one word about the progress to the next."""

_MAX_DIGESTS: Final = 4_000
"""In one round: 2 million rows, a few seconds of every writer. The next one goes on there."""

_STALLED_S: Final = 5.0
"""After this long without anything becoming committed, a round is given up: each of its digests is
an entry, and one that nobody commits is followed by no other."""

_PATIENCE_S: Final = 10.0
"""For replicas to apply the round's last entry."""

_POLL_S: Final = 0.02

_NO_MAJORITY: Final = "see `hadron status` for the nodes that are away"


class IntegrityService:
    def __init__(self, scrubber: Scrubber, repairer: Repairer) -> None:
        self._scrubber = scrubber
        self._repairer = repairer
        self._verifying = trio.Lock()

    def methods(self) -> tuple[Served | Led, ...]:
        pb = integrity_pb2
        return (
            served("Verify", pb.VerifyRequest, pb.VerifyResponse, self._verify),
            led("CompareTables", pb.CompareTablesRequest, pb.CompareTablesResponse, self._compare),
        )

    # --- one node's disk ------------------------------------------------------------------------

    def _verify(
        self, call: _Verify, request: integrity_pb2.VerifyRequest, _attachment: memoryview
    ) -> None:
        until_lsn = check_number("lsn", request.until_lsn)
        slices = 0

        def tell(lsn: int) -> None:
            nonlocal slices
            slices += 1
            if slices % _TOLD_EVERY == 0 and call.writable:
                call.send(integrity_pb2.VerifyResponse(reached_lsn=lsn))

        async def answer() -> None:
            async with self._verifying:
                repaired = self._repairer.repaired
                report = await self._scrubber.check(
                    until_lsn=until_lsn, bytes_per_s=_BYTES_PER_S, on_slice=tell
                )
            message = report_to(report)
            message.remedy = self._remedy(self._repairer.repaired - repaired)
            call.send(
                integrity_pb2.VerifyResponse(reached_lsn=report.last_lsn, report=message), end=True
            )

        call.spawn(answer)

    def _remedy(self, repaired: int) -> str:
        """What is done about damage, in words that follow this node's name.

        Args:
            repaired: how many entries were given back meanwhile.
        """
        if self._repairer.wants_snapshot:
            return "is being rebuilt from another member"
        if self._repairer.is_repairing:
            return "is being repaired from another member"
        places = counted(repaired, "place")
        return f"has mended its file in {places} from another member" if repaired else ""

    # --- the tables of all of them --------------------------------------------------------------

    def _compare(
        self,
        leading: Leading,
        call: _Compare,
        _request: integrity_pb2.CompareTablesRequest,
        _attachment: memoryview,
    ) -> None:
        controller = leading.controller

        def tell(rows: int) -> None:
            if call.writable:
                call.send(integrity_pb2.CompareTablesResponse(rows=rows))

        async def answer() -> None:
            async with self._verifying:
                before = dict(controller.feeding.diverged)
                rows, lsn, is_complete = await _go_round(controller, tell)
                members = await _wait_applied(controller, lsn, before)
            call.send(
                integrity_pb2.CompareTablesResponse(
                    rows=rows, lsn=lsn, is_complete=is_complete, members=members
                ),
                end=True,
            )

        call.spawn(answer)


async def _go_round(
    controller: Controller, on_progress: Callable[[int], None]
) -> tuple[int, int, bool]:
    """`digests.go_round`, as long as a majority takes what it logs.

    Raises `NotReadyError` when none does; nothing was logged if none did from the beginning.
    """
    if missing := missing_majority(controller):
        raise NotReadyError(missing, _NO_MAJORITY)
    await controller.confirm_leadership()
    scope = trio.CancelScope(deadline=trio.current_time() + _STALLED_S)

    def went_on(rows: int) -> None:
        scope.deadline = trio.current_time() + _STALLED_S
        on_progress(rows)

    with scope:
        return await go_round(controller, max_digests=_MAX_DIGESTS, on_progress=went_on)
    raise NotReadyError(
        missing_majority(controller) or f"no majority took a digest within {_STALLED_S:g} s",
        _NO_MAJORITY,
    )


async def _wait_applied(
    controller: Controller, lsn: int, diverged: dict[str, int]
) -> list[integrity_pb2.CompareTablesResponse.Member]:
    """Whoever has applied the digests has found its tables to be the same.

    Args:
        diverged: the controller's, from before the first digest.
    """
    names = [name for name in controller.quorum.members if name != controller.node]

    def differs(name: str) -> bool:
        # It may have got a snapshot in the meantime.
        return controller.feeding.diverged.get(name, 0) > diverged.get(name, 0)

    def compared(name: str) -> bool:
        return controller.feeding.applied_by.get(name, 0) >= lsn and not differs(name)

    with trio.move_on_after(_PATIENCE_S):
        # What peers have applied is known from their answers, each a message of its own.
        while not all(  # noqa: ASYNC110
            compared(name) or differs(name) or controller.feed_of(name) is None for name in names
        ):
            await trio.sleep(_POLL_S)
    if not controller.leads:
        raise NotReadyError("this node stopped leading while the tables were compared")
    return [
        integrity_pb2.CompareTablesResponse.Member(
            name=name,
            is_compared=compared(name),
            trouble=""
            if compared(name)
            else f"{name}'s tables differ from the leader's; a snapshot replaces them"
            if differs(name)
            else _why_not(controller, name, lsn),
        )
        for name in names
    ]


def _why_not(controller: Controller, name: str, lsn: int) -> str:
    if controller.feed_of(name) is None:
        return f"{name} is away"
    applied = controller.feeding.applied_by.get(name, 0)
    if not applied:
        return f"{name} has no tables yet, or is waiting for a snapshot to replace them"
    return f"{name} has applied entry {applied}, not yet {lsn}"


def report_to(report: Report) -> integrity_pb2.VerifyReport:
    return integrity_pb2.VerifyReport(
        first_lsn=report.first_lsn,
        last_lsn=report.last_lsn,
        chain=bytes.fromhex(report.chain),
        committed_lsn=report.committed_lsn,
        applied_lsn=report.applied_lsn,
        entries=report.entries,
        bodies=report.bodies,
        batches=report.batches,
        bytes=report.bytes,
        dropped_bodies=report.dropped_bodies,
        checked=report.checked,
        skipped=report.skipped,
        problem_count=report.problem_count,
        problems=[
            integrity_pb2.VerifyReport.Problem(
                text=each.text,
                table=each.table,
                lsn=each.lsn,
                stream_id=each.stream_id,
                offset=each.offset,
            )
            for each in report.problems
        ],
    )


def report_from(message: integrity_pb2.VerifyReport) -> Report:
    """The inverse of `report_to`."""
    report = Report(
        first_lsn=message.first_lsn,
        last_lsn=message.last_lsn,
        chain=message.chain.hex(),
        committed_lsn=message.committed_lsn,
        applied_lsn=message.applied_lsn,
        entries=message.entries,
        bodies=message.bodies,
        batches=message.batches,
        bytes=message.bytes,
        dropped_bodies=message.dropped_bodies,
        checked=list(message.checked),
        skipped=list(message.skipped),
    )
    for each in message.problems:
        report.add(
            each.text, table=each.table, lsn=each.lsn, stream_id=each.stream_id, offset=each.offset
        )
    report.problem_count = message.problem_count
    return report
