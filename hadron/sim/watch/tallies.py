"""W2: what is counted is what is there.

Every bound goes by a number that is kept beside what it counts, because counting anew would take
too long: records that members hold, bytes that wait. One that has drifted lets too much in, or
nothing any more, long after the mistake and far from it. Here all are counted anew, whenever what
changes them has come to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hadron.client.consuming.channel import Channel
from hadron.client.exchanges.inbox import Inbox
from hadron.client.handling.records import FetchedRecords
from hadron.client.producing.accumulator import PartitionAccumulator
from hadron.client.producing.outgoing_batch import BatchState
from hadron.client.producing.publisher import Publisher
from hadron.delivery.groups import Groups
from hadron.delivery.held import Held
from hadron.delivery.shelf import Shelves
from hadron.delivery.taking import Taking
from hadron.delivery.waiting import Waiting
from hadron.endpoints.endpoint import Endpoint
from hadron.exchanges.trie import Trie
from hadron.node.leader_links import _Link, _statement_bytes
from hadron.pipelines.losses import Losses
from hadron.replication.feed import Ring
from hadron.server.forwarding import _Way
from hadron.serving.visible import VisibleStreams
from hadron.sim.notes.wrapping import wrapped
from hadron.transactions.machine import Machine
from hadron.wire.budget import Budget
from hadron.wire.connection import Connection

RULE: Final = "W2 what is counted is what is there"

Counts = Iterable[tuple[str, int, int]]
"""What is counted; the number that is kept; how many there are."""


@dataclass(frozen=True)
class _Tally:
    """What `owner` counts is right whenever one of its functions `after` has come to its end."""

    owner: type[Any]
    after: tuple[str, ...]
    counts: Callable[[Any], Counts]


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


# --- consumer groups ----------------------------------------------------------------------------


def _held(held: Held) -> Counts:
    yield "records that members hold", held.records, sum(len(each.held) for each in held)
    yield "pieces of them", held.pieces, sum(each.held.fragments for each in held)


def _waiting(waiting: Waiting) -> Counts:
    items = waiting._items.values()
    there = _length((item.first, item.last) for item in items)
    yield "records that are to be delivered again", waiting.records, there
    yield "items that go apart", waiting._apart, sum(item.tries.is_apart for item in items)


def _taken(taking: Taking) -> Counts:
    there = _length((first, last) for first, last, _ in taking._taken)
    yield "records that transactions have", taking.records, there


def _shelved(shelves: Shelves) -> Counts:
    yield "bytes of batches at hand", shelves.bytes, sum(shelves._sizes.values())


def _groups(groups: Groups) -> Counts:
    drivers = groups._drivers.values()
    there = sum(driver.is_ephemeral for driver in drivers)
    yield "ephemeral groups", groups._ephemeral, there


def _unconfirmed(channel: Channel) -> Counts:
    there = channel._count_unasked + sum(each.count for each in channel._confirmations.values())
    yield "acknowledgements that are not confirmed", channel.unconfirmed, there


# --- producers ----------------------------------------------------------------------------------


def _buffered(accumulator: PartitionAccumulator) -> Counts:
    batches = accumulator.unresolved()
    there = sum(each.size for each in batches)
    yield "bytes of a partition", accumulator.held_bytes, there
    sent = sum(each.state is BatchState.SENT for each in batches)
    yield "batches under way", accumulator.in_flight, sent


def _published(publisher: Publisher) -> Counts:
    there = sum(each.accumulator.held_bytes for each in publisher._router.senders)
    yield "bytes of a producer", publisher.buffer.bytes, there


# --- logs, reads, pipelines, transactions -------------------------------------------------------


def _ring(ring: Ring) -> Counts:
    yield "bytes of the latest entries", ring._bytes, sum(each.size for each in ring._latest)
    yield "the latest entries", len(ring._by_first), len(ring._latest)


def _recent(visible: VisibleStreams) -> Counts:
    yield "bytes of batches", visible._recent_bytes, sum(size for _, size in visible._order)
    yield "batches", len(visible._order), sum(map(len, visible._recent.values()))


def _lost(losses: Losses) -> Counts:
    there = sum(len(lost) for found in losses._by_run.values() for _, lost in found)
    yield "instances that were lost with runs", losses._of_runs, there


def _stage_records(records: FetchedRecords) -> Counts:
    yield "bytes of records", records._size, sum(each.size for each in records._kept.values())


def _transactions(machine: Machine) -> Counts:
    there = sum(each.kept for each in machine._held.values())
    yield "bytes of transactions", machine.held_bytes, there


def _said(link: _Link) -> Counts:
    there = sum(map(_statement_bytes, link._waiting))
    yield "bytes that another leader is to hear", link._waiting_bytes, there


# --- calls, exchanges, wires --------------------------------------------------------------------


def _calls(endpoint: Endpoint) -> Counts:
    runs = [run for server in endpoint.servers for run in server.held.values()]
    yield "calls that are run", endpoint.in_flight, len(runs)
    there = sum(call.kept_bytes for call in endpoint.waiting)
    yield "bytes of calls that wait", endpoint.waiting_bytes, there
    kept = {run.call for run in runs if run.is_wanted} - endpoint.waiting.keys()
    there = sum(call.kept_bytes for call in kept)
    yield "bytes that are kept of calls that are run", endpoint.kept_bytes, there


def _nodes(trie: Trie[Any]) -> Counts:
    waiting, there = [trie._root], 0
    while waiting:
        there += 1
        waiting.extend(waiting.pop().children.values())
    yield "nodes of patterns", trie.nodes, there


def _parcels(inbox: Inbox) -> Counts:
    yield "bytes of messages", inbox._held_bytes, sum(each[3] for each in inbox._parcels)


def _relayed(way: _Way) -> Counts:
    there = sum(relay.waiting_bytes for relay in way._waiting)
    yield "bytes for another node's leader", way._waiting_bytes, there


def _unsent(connection: Connection) -> Counts:
    there = sum(map(len, connection._backlog))
    yield "bytes that wait for a socket", connection._backlog_bytes, there
    answered = sum(number % 2 != connection._own_parity for number in connection._calls)
    yield "calls to be answered", connection._answering, answered


def _incomplete(budget: Budget) -> Counts:
    there = sum(budget._incomplete.values())
    yield "bytes of frames that are coming", budget._incomplete_bytes, there


TALLIES: Final = (
    _Tally(Held, ("put", "release", "leave"), _held),
    _Tally(Waiting, ("put", "pop", "take_items"), _waiting),
    _Tally(Taking, ("mark", "keep", "give_back", "finish"), _taken),
    _Tally(Shelves, ("note",), _shelved),
    _Tally(Groups, ("_new_driver", "_forget"), _groups),
    _Tally(Channel, ("_send", "confirmed"), _unconfirmed),
    _Tally(
        PartitionAccumulator,
        (
            "add",
            "add_conditional",
            "add_numbered",
            "add_values",
            "next_batch",
            "claimed",
            "refuse_all",
            "acked",
            "refused",
            "take",
            "adopt",
            "expire",
            "close",
        ),
        _buffered,
    ),
    _Tally(Publisher, ("add", "add_values"), _published),
    _Tally(Ring, ("push",), _ring),
    _Tally(VisibleStreams, ("_give_up", "_advance"), _recent),
    _Tally(Losses, ("note", "take_back", "settle", "turn"), _lost),
    _Tally(FetchedRecords, ("_drop",), _stage_records),
    _Tally(Machine, ("step",), _transactions),
    _Tally(_Link, ("say",), _said),
    _Tally(
        Endpoint,
        (
            "join",
            "leave",
            "drain",
            "add_waiting",
            "serve_waiting",
            "refuse_without_servers",
            "hedge",
            "done",
            "refused",
            "answered",
            "fail",
            "finish",
            "close",
        ),
        _calls,
    ),
    _Tally(Trie, ("add", "remove"), _nodes),
    _Tally(Inbox, ("push", "take_now"), _parcels),
    _Tally(_Way, ("take", "forget"), _relayed),
    _Tally(Connection, ("write", "forget"), _unsent),
    _Tally(Budget, ("receiving",), _incomplete),
)


@contextmanager
def tallying(complain: Callable[[str, str], None]) -> Iterator[None]:
    """Count anew for the length of the block; `complain` is called with the rule, and a text."""
    with ExitStack() as undo:
        for tally in TALLIES:
            undo.enter_context(wrapped(tally.owner, **_wrappers(tally, complain)))
        yield


def _wrappers(
    tally: _Tally, complain: Callable[[str, str], None]
) -> dict[str, Callable[[Any], Any]]:
    depth = 0
    """Within another one of these functions it may be in the midst of a change."""

    def wrapper(original: Any) -> Any:
        def counted(owner: Any, *given: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return original(owner, *given, **named)
            finally:
                depth -= 1
                if not depth:
                    _compare(tally, owner, complain)

        return counted

    return dict.fromkeys(tally.after, wrapper)


def _compare(tally: _Tally, owner: Any, complain: Callable[[str, str], None]) -> None:
    for what, counted, there in tally.counts(owner):
        if counted != there:
            complain(RULE, f"{tally.owner.__name__} counts {counted} {what}, there are {there}")
