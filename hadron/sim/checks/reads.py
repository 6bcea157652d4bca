"""Checks of what readers were shown: committed records only, and never less than before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hadron.sim.evidence.evidence import Evidence, Violation
from hadron.sim.evidence.history import Deliver, Read


def shown_is_committed(evidence: Evidence) -> Iterator[Violation]:
    """A record that anybody was shown is in the final log, at that offset.

    What was shown before an operator went on with a log that may have lost its end may be gone.
    """
    recovered_at = max(
        (event.at for event in evidence.history.events("reconfigure") if event.detail == "loss"),
        default=0,
    )
    shown: list[Read | Deliver] = [*evidence.history.of(Read), *evidence.history.of(Deliver)]
    for operation in shown:
        if operation.outcome != "ok" or operation.ended < recovered_at:
            continue
        contents = evidence.contents(operation.stream)
        who = (
            f"group {operation.group}"
            if isinstance(operation, Deliver)
            else f"reader {operation.client}"
        )
        for index, value in enumerate(operation.values):
            offset = operation.offset + index
            if evidence.rules.retention and offset < contents.first_offset:
                continue
            evidence.judged["shown_is_committed"] += 1
            found = contents.values.get(offset)
            if found != value:
                yield Violation(
                    "shown_is_committed",
                    f"{who} was shown {value!r} at {operation.stream}@{offset}; the log has "
                    f"{found!r} there",
                )
                break


def watermark_never_falls(evidence: Evidence) -> Iterator[Violation]:
    """A read sees at least what was visible, or acknowledged, before it began.

    Not judged once another node was made leader: the old one may show what it knew for as long as
    it has not heard of that.
    """
    if evidence.history.events("promote", "reconfigure"):
        return
    began: list[tuple[int, str, int]] = []
    ended: list[tuple[int, str, int, str]] = []
    for read in evidence.history.of(Read):
        if read.outcome == "ok":
            end = max(read.end, read.offset + len(read.values))
            ended.append((read.ended, read.stream, end, f"{read.client} saw the end at {end}"))
            if read.end >= 0:
                began.append((read.began, read.stream, read.end))
    for publish in evidence.acknowledged:
        if publish.acks != "leader":
            end = max(base + count for base, count in publish.runs)
            what = f"offset {end - 1} was acknowledged to {publish.client}"
            ended.append((publish.ended, publish.stream, end, what))
    began.sort()
    ended.sort(reverse=True)
    highest: dict[str, tuple[int, str]] = {}
    for time, stream, end in began:
        while ended and ended[-1][0] < time:
            _, its_stream, its_end, what = ended.pop()
            highest[its_stream] = max(highest.get(its_stream, (0, "")), (its_end, what))
        before = highest.get(stream)
        evidence.judged["watermark_never_falls"] += 1
        if before is not None and before[0] > end:
            yield Violation(
                "watermark_never_falls", f"{before[1]}; a later read of {stream} ended at {end}"
            )


CHECKS: Final = (shown_is_committed, watermark_never_falls)
