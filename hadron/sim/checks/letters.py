"""Checks of dead letters: a record whose attempts were used up, as it was, and only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from hadron.delivery import letters
from hadron.sim.evidence.evidence import Evidence, Violation, text_of
from hadron.sim.evidence.history import Serve, Stuck

_HEADERS: Final = (
    letters.REASON,
    letters.ATTEMPTS,
    letters.ORIGIN_STREAM,
    letters.ORIGIN_PARTITION,
    letters.ORIGIN_OFFSET,
    letters.GROUP,
)


def letters_are_whole(evidence: Evidence) -> Iterator[Violation]:
    """A dead letter is its record, and says from where it came, why, and after how many attempts:
    as many as its group allows."""
    most = {
        (entry.stream, entry.group): entry.max_attempts
        for entry in evidence.history.entries
        if isinstance(entry, Serve)
    }
    served = {
        entry.driver: (entry.stream, entry.group)
        for entry in evidence.history.entries
        if isinstance(entry, Serve)
    }
    # Not the generations': an ephemeral group's are forgotten with each leader, and reset.
    stuck = {served[each.driver] for each in evidence.history.entries if isinstance(each, Stuck)}
    for stream in sorted(evidence.letter_streams):
        for offset, letter in evidence.records(stream).items():
            headers = letter.headers
            evidence.judged["letters_are_whole"] += 1
            missing = [name for name in _HEADERS if not headers.get(name)]
            if missing:
                yield _wrong(stream, offset, f"has no {', '.join(missing)}")
                continue
            group = headers[letters.ORIGIN_STREAM], headers[letters.GROUP]
            attempts = int(headers[letters.ATTEMPTS])
            if (
                group not in most
                or attempts < most[group]
                or (attempts > most[group] and group not in stuck)
            ):
                yield _wrong(
                    stream,
                    offset,
                    f"names {attempts} attempts of group {group[1]}, which allows "
                    f"{most.get(group)}",
                )
            origin = evidence.records(group[0]).get(int(headers[letters.ORIGIN_OFFSET]))
            if origin is None:
                continue  # Retention has dropped it since.
            was, now = (text_of(origin.value), origin.key), (text_of(letter.value), letter.key)
            if was != now:
                yield _wrong(stream, offset, f"is {now}, its record was {was}")


def one_letter_each(evidence: Evidence) -> Iterator[Violation]:
    """A record is a dead letter of a group once, and once more after a reset."""
    for key, group in evidence.replay.groups.items():
        stream, _, name = key
        if group.is_ephemeral:
            continue  # Its attempts are forgotten with its leader.
        counts = Counter(evidence.dead_letters.get((stream, name), ()))
        for offset, count in sorted(counts.items()):
            evidence.judged["one_letter_each"] += 1
            times = sum(offset in each.given for each in group.generations.values())
            if count > times:
                yield Violation(
                    "one_letter_each",
                    f"group {name} has {count} dead letters of {stream}@{offset}, which it was "
                    f"given by {times} generations of it",
                )


def _wrong(stream: str, offset: int, what: str) -> Violation:
    return Violation("letters_are_whole", f"the dead letter at {stream}@{offset} {what}")


CHECKS: Final = (letters_are_whole, one_letter_each)
