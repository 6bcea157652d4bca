"""Checks of transactions: all or nothing, as their clients were told, and once (PROTOCOL E1, E2);
of names of producers (D6), of conditions (D5), and of what bulk writers publish (E10, E11).

Over all replica sets at once: each of a transaction's records and acknowledgements may be at
another one. Only what is never dropped is judged: streams that were deleted, or have a retention,
tell nothing by what they lack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Final

from hadron.sim.evidence.evidence import Evidence, Violation
from hadron.sim.evidence.history import Deliver, History, Publish, Read, Transact
from hadron.sim.evidence.made import Numbered, numbered, source_of, written
from hadron.sim.evidence.regions import Cluster


@dataclass
class Ledger:
    """What became of everything, by the files of all sets.

    Attributes:
        sets: each replica set, by its name.
    """

    history: History
    sets: Mapping[str, Evidence]
    judged: Counter[str] = field(default_factory=Counter)

    @cached_property
    def places(self) -> dict[str, list[str]]:
        """By value: where it is."""
        found: dict[str, list[str]] = {}
        for name, evidence in self.sets.items():
            for stream, contents in evidence.streams.items():
                if stream not in evidence.letter_streams:
                    for offset, value in contents.values.items():
                        found.setdefault(value, []).append(f"{stream}@{offset} of {name}")
        return found

    @cached_property
    def acknowledged(self) -> dict[tuple[str, str, str], set[int]]:
        """By stream, replica set and group: offsets that are over for it."""
        found: dict[tuple[str, str, str], set[int]] = {}
        for name, evidence in self.sets.items():
            streams = {each.stream_id: stream for stream, each in evidence.streams.items()}
            for row in evidence.reference.groups:
                if row.stream_id in streams:
                    offsets = found.setdefault((streams[row.stream_id], name, row.name), set())
                    offsets.update(range(row.floor))
                    for first, last in row.ranges:
                        offsets.update(range(first, last + 1))
        return found

    @cached_property
    def publishes(self) -> dict[str, Publish]:
        return {value: each for each in self.history.of(Publish) for value in each.values}

    @cached_property
    def transactions(self) -> list[Transact]:
        return self.history.of(Transact)

    def must_survive(self, transaction: Transact) -> bool:
        """Whether what was committed is there still (PROTOCOL C), in streams that are."""
        published = [self.publishes.get(value) for value in transaction.values]
        return all(
            each is not None
            and self._is_there(each.stream)
            and all(evidence.must_survive(each) for evidence in self.sets.values())
            for each in published
        )

    def _is_there(self, stream: str) -> bool:
        """Of those that come and go, which have labels."""
        return "#" not in stream or any(
            stream in evidence.streams for evidence in self.sets.values()
        )

    def is_kept(self, value: str) -> bool:
        """Whether the stream that it was published to is still there. (Of one that is gone, a
        history in which streams are told apart has nothing.)"""
        publish = self.publishes.get(value)
        return publish is not None and any(
            publish.stream in evidence.streams for evidence in self.sets.values()
        )


def transactions_are_whole(ledger: Ledger) -> Iterator[Violation]:
    """E1, E2: all of a transaction is there, or nothing of it, as its client was told, and whoever
    asked later; records and acknowledgements together."""
    for each in ledger.transactions:
        ledger.judged["transactions_are_whole"] += 1
        name = f"{each.transaction or 'a transaction'} of {each.client}"
        values = list(filter(ledger.is_kept, each.values))
        there = [value for value in values if value in ledger.places]
        twice = [value for value in there if len(ledger.places[value]) > 1]
        told = set(each.told)
        what = f"{len(there)} of {len(values)} records are there, it was told {each.told}"
        if twice:
            where = ledger.places[twice[0]]
            yield Violation("transactions_are_whole", f"{name}: {twice[0]!r} is at {where}")
        if there and len(there) != len(values):
            yield Violation("transactions_are_whole", f"{name} is torn: {what}")
        elif len(told) > 1 or (there and "rolled back" in told):
            yield Violation("transactions_are_whole", f"{name}: {what}")
        elif values and not there and "committed" in told and ledger.must_survive(each):
            yield Violation("transactions_are_whole", f"{name} is lost: {what}")
        if there or ("committed" in told and ledger.must_survive(each)):
            yield from _acknowledges(ledger, each, name)


def _acknowledges(ledger: Ledger, transaction: Transact, name: str) -> Iterator[Violation]:
    for stream, partition, group, first, last in transaction.acks:
        known = ledger.acknowledged.get((stream, partition, group), set())
        if not known.issuperset(range(first, last + 1)):
            yield Violation(
                "transactions_are_whole",
                f"{name} is committed; {first} to {last} of {stream} of {partition} are not all "
                f"acknowledged by group {group}",
            )
            return


def transactions_end(ledger: Ledger) -> Iterator[Violation]:
    """E4, E6: of each transaction its driver says in the end what became of it."""
    if not ledger.history.events("heal") or not ledger.history.events("draining"):
        return
    for each in ledger.transactions:
        ledger.judged["transactions_end"] += 1
        if each.transaction and not each.told:
            yield Violation(
                "transactions_end",
                f"nobody says what became of {each.transaction} of {each.client}",
            )


def intents_are_not_read(ledger: Ledger) -> Iterator[Violation]:
    """E4, E5: nobody reads what is rolled back, or not to be committed yet."""
    owners = {value: each for each in ledger.transactions for value in each.values}
    shown: list[Read | Deliver] = [*ledger.history.of(Read), *ledger.history.of(Deliver)]
    for operation in shown:
        for value in operation.values:
            of = owners.get(value)
            if of is None:
                continue
            ledger.judged["intents_are_not_read"] += 1
            is_open = not of.asked or operation.ended < of.asked
            if operation.outcome == "ok" and (is_open or "rolled back" in of.told):
                yield Violation(
                    "intents_are_not_read",
                    f"{operation.client} was shown {value!r} of {of.transaction or of.client}, "
                    f"which was {'not to be committed' if is_open else 'rolled back'}",
                )
                return


def inputs_have_one_output(ledger: Ledger) -> Iterator[Violation]:
    """K13, E2: what a group's members make of a record, in the transaction that acknowledges it, is
    there once when it is acknowledged, and not at all before."""
    made: Counter[tuple[str, int]] = Counter()
    for value in ledger.places:
        source = source_of(value)
        if source is not None:
            made[source] += 1
    groups = {each[:3] for one in ledger.transactions for each in one.acks}
    for stream, partition, group in sorted(groups):
        evidence = ledger.sets.get(partition)
        known = ledger.acknowledged.get((stream, partition, group), set())
        if evidence is None:
            continue
        for offset in evidence.contents(stream).values:
            ledger.judged["inputs_have_one_output"] += 1
            if made[partition, offset] != (offset in known):
                yield Violation(
                    "inputs_have_one_output",
                    f"offset {offset} of {stream} of {partition} is "
                    f"{'' if offset in known else 'not '}acknowledged, and has "
                    f"{made[partition, offset]} outputs",
                )
                return


def names_are_one_producers(ledger: Ledger) -> Iterator[Violation]:
    """D6, K10: nobody with a name writes behind who had it next; what its program has numbered is
    there once, in order, and nothing is left out."""
    for where, records in _numbered(ledger):
        past: set[str] = set()
        before: Numbered | None = None
        for each in records:
            ledger.judged["names_are_one_producers"] += 1
            if before is not None and before.by != each.by:
                past.add(before.by)
            if each.by in past:
                yield Violation(
                    "names_are_one_producers",
                    f"{each} is at {where} behind {before}, who had the name next",
                )
                return
            following = 0 if before is None else before.number + 1
            if each.number != following:
                yield Violation("names_are_one_producers", f"{each} is at {where} behind {before}")
                return
            before = each


def conditions_hold(ledger: Ledger) -> Iterator[Violation]:
    """D5, K9: each number of a key was made of the one before it."""
    for where, records in _numbered(ledger, of_keys=True):
        for before, each in zip([None, *records], records, strict=False):
            ledger.judged["conditions_hold"] += 1
            if each.number != (0 if before is None else before.number + 1):
                yield Violation("conditions_hold", f"{each} is at {where} behind {before}")
                return


def _numbered(ledger: Ledger, *, of_keys: bool = False) -> Iterator[tuple[str, list[Numbered]]]:
    """Of each partition: what tasks, or keys, have numbered there, each in the log's order."""
    for name, evidence in ledger.sets.items():
        if any(not evidence.must_survive(each) for each in evidence.acknowledged):
            continue
        for stream, contents in evidence.streams.items():
            found: dict[str, list[Numbered]] = {}
            for _, value in sorted(contents.values.items()):
                each = numbered(value)
                if each is not None and (len(each.of) == 1) == of_keys:
                    found.setdefault(each.of, []).append(each)
            for records in found.values():
                yield f"{stream} of {name}", records


def batches_are_published_once(ledger: Ledger) -> Iterator[Violation]:
    """E10, E11: of all that was staged of a query's batch one choice of attempts is there; what a
    sink calls published is; and where the sink's own set has records, batches are in order."""
    check = "batches_are_published_once"
    there: dict[str, set[int]] = {}
    chosen: dict[str, list[Transact]] = {}
    for number, each in enumerate(ledger.transactions):
        found = written(each.values[0]) if each.values else None
        if found is not None:
            ledger.judged[check] += 1
            name = f"{found.query} {found.batch}"
            chosen.setdefault(name, []).append(each)
            if any(value in ledger.places for value in each.values):
                there.setdefault(name, set()).add(number)
    for name, numbers in there.items():
        if len(numbers) > 1:
            yield Violation(check, f"batch {name} is there {len(numbers)} times")
    for name in {event.subject for event in ledger.history.events("published")} - there.keys():
        if all(map(ledger.must_survive, chosen.get(name, ()))):
            yield Violation(check, f"batch {name} is published, says its sink, and is not there")
    if len(ledger.sets) == 1:
        yield from _in_order(ledger, check)


def _in_order(ledger: Ledger, check: str) -> Iterator[Violation]:
    """A query comes once, and its batches rise: the transaction that advances the sink appends."""
    for evidence in ledger.sets.values():
        for contents in evidence.streams.values():
            past: set[str] = set()
            before = None
            for _, value in sorted(contents.values.items()):
                each = written(value)
                if each is None or each == before:
                    continue
                if before is not None and before.query != each.query:
                    past.add(before.query)
                    before = None
                if each.query in past or (before is not None and each.batch < before.batch):
                    yield Violation(check, f"{value!r} is there behind a later batch")
                    return
                before = each


LedgerCheck = Callable[[Ledger], Iterator[Violation]]

_ALL: Final[tuple[LedgerCheck, ...]] = (
    transactions_are_whole,
    transactions_end,
    intents_are_not_read,
    inputs_have_one_output,
    names_are_one_producers,
    conditions_hold,
    batches_are_published_once,
)


def _of_one(check: LedgerCheck) -> Callable[[Evidence], Iterator[Violation]]:
    @wraps(check)
    def judge(evidence: Evidence) -> Iterator[Violation]:
        if not evidence.history.of(Transact):
            return iter(())
        # All of it is at the one partition that there is.
        name = next((each.partition for each in evidence.publishes if each.partition), "")
        return check(Ledger(evidence.history, {name: evidence}, evidence.judged))

    return judge


def _of_several(check: LedgerCheck) -> Callable[[Cluster], Iterator[Violation]]:
    @wraps(check)
    def judge(cluster: Cluster) -> Iterator[Violation]:
        if not cluster.history.of(Transact):
            return iter(())
        return check(Ledger(cluster.history, cluster.sets))

    return judge


CHECKS: Final = tuple(map(_of_one, _ALL))
REGION_CHECKS: Final = tuple(map(_of_several, _ALL))
