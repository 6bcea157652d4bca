"""What a node owes when all is healed, all are in step and nobody asks for anything any more.

Whatever a node has put off it does by itself once it can: nothing else would happen, so that what
is still owed after a while is owed for ever. Broken rules of this kind lose nothing in a short run;
they fill disks, and show what has long been dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import apsw
import trio

from hadron.model.schema import Retention, StreamSpec
from hadron.serving.leading import Leading
from hadron.sim.watch.leftovers import left_by
from hadron.sim.world.replica_set import World
from hadron.transactions.part import Transactions

_SETTLED_S: Final = 20.0
"""Simulated seconds within which nodes at rest have paid."""

_LATE_MS: Final = 4_000
"""Retention looks again a second after a batch is too old, a second after a replica was waited for,
and pauses between its rounds."""

_OVER: Final = (
    "SELECT bytes FROM hadron_stream_partition p WHERE stream_id = ? AND bytes > ?"
    " AND (SELECT count(*) FROM hadron_stream_batch b WHERE b.stream_id = p.stream_id) > 1"
)
"""The newest batch stays, however large it is."""

_LEFT: Final = (
    "SELECT group_concat(DISTINCT stream_id) FROM hadron_stream_batch"
    " WHERE stream_id NOT IN (SELECT id FROM hadron_schema_object)"
    " AND stream_id NOT IN (SELECT id FROM hadron_dropped)"
)


_UNDONE: Final = {
    "transactions that others drive": "SELECT group_concat(replica_set || '/' || epoch || '.' ||"
    " incarnation || '/' || number) FROM hadron_participation",
    "intents, by their entries": "SELECT group_concat(lsn) FROM hadron_intent",
    "locks, by their transactions' entries": "SELECT group_concat(prepared_lsn) FROM hadron_lock",
    "decisions that not all have finished, by their entries": "SELECT group_concat(lsn)"
    " FROM hadron_decision WHERE finished_ms IS NULL",
    "outputs that are on their way, by the entries that decided them": "SELECT group_concat(lsn)"
    " FROM hadron_stage_publishing",
    "stages whose outputs are on their way": "SELECT group_concat(stage || '/' || instance_id)"
    " FROM hadron_stage_run WHERE status = 4",
    "backfills that nobody has paused": "SELECT group_concat(pipeline_id || '/' || number)"
    " FROM hadron_backfill JOIN hadron_pipeline USING (pipeline_id) WHERE status = 1",
    "what was staged, by its entries": "SELECT group_concat(staged_lsn) FROM hadron_staged",
    "letters of what was given up": "SELECT group_concat(pipeline_id || '/' || instance_id)"
    " FROM hadron_instance_letter JOIN hadron_pipeline USING (pipeline_id)",
}
"""E4, E10, P9, P11, P13: nobody is left who would end these."""


def _undone(leading: Leading, select: Callable[[str], Any]) -> Iterator[str]:
    """What transactions and pipelines have left at a leader."""
    for what, query in _UNDONE.items():
        if left := select(query):
            yield f"an end to {what}: {left}"
    transactions = leading.part(Transactions)
    machine = transactions.driver.machine
    if held := ", ".join(str(each.transaction) for each in machine.shown(0.0)):
        yield f"an end to what it drives: {held}"
    if machine.held_bytes or len(transactions.claims):
        yield f"{machine.held_bytes} bytes and {len(transactions.claims)} claims of nobody"


async def settle(
    worlds: Collection[World], *, patience_s: float = _SETTLED_S
) -> dict[str, list[str]]:
    """Wait until nobody owes anything, or for long enough. Returns what is still owed, by node."""
    await trio.sleep(max((_longest_age_ms(world) for world in worlds), default=0) / 1_000)
    owed: dict[str, list[str]] = {}
    with trio.move_on_after(patience_s):
        while True:
            places = {
                node: each.config.node(node).address for each in worlds for node in each.names
            }
            owed = {
                name: found
                for world in worlds
                for name in world.names
                if (
                    found := [
                        *_owed(world, name),
                        *_unheard(world, name, places),
                        *_left_over(world, name),
                    ]
                )
            }
            if not owed:
                break
            await trio.sleep(0.25)
    return owed


def _unheard(world: World, name: str, places: Mapping[str, str]) -> Iterator[str]:
    """R4: where a node is, everybody hears from itself in the end."""
    if not world.listens(name):
        return
    for known in world.node(name).discovery.sets():
        for node in known.nodes:
            if places.get(node.name, node.address) != node.address:
                yield f"where {node.name} is: {places[node.name]}, not {node.address}"


def _left_over(world: World, name: str) -> Iterator[str]:
    """W9, once it has done what it must."""
    if world.listens(name):
        yield from left_by(world.node(name))


def _longest_age_ms(world: World) -> int:
    """Of what was sent a moment ago, until it must have been dropped."""
    ages = [limits.max_age_ms for _, limits in _limited(world, world.config.leader.name)]
    return max(ages) + _LATE_MS if any(ages) else 0


def _limited(world: World, name: str) -> list[tuple[int, Retention]]:
    copy = world.node(name).member._schema_copy if world.listens(name) else None
    if copy is None or not copy.is_known:
        return []
    return [
        (item.id, item.spec.retention)
        for item in copy.catalog.all()
        if isinstance(item.spec, StreamSpec) and world.config.name in item.spec.partitions
    ]


def _owed(world: World, name: str) -> Iterator[str]:
    if not world.listens(name):
        return
    member = world.node(name).member
    snapshots, pins = member._snapshots, len(member._trimmer._pins)
    if pins > (snapshots._current is not None) and not snapshots._making.locked():
        yield f"room for its log, which it keeps for {pins} copies"

    def select(query: str, *values: Any) -> Any:
        try:
            return member._store.writer.connection.execute(query, values).get
        except apsw.SQLError:
            raise
        except apsw.Error:
            return None

    index = select("SELECT metadata_index FROM hadron_schema_index")
    if index and member._schema_copy.index != index:
        yield f"the schema at {index}: it shows the one at {member._schema_copy.index}"
    if dropped := select("SELECT group_concat(id) FROM hadron_dropped"):
        yield f"room that deleted objects {dropped} have here"
    if left := select(_LEFT):
        yield f"room that streams {left} have here, which do not exist and are not dropped"
    leadership = member._leadership
    if leadership is None or leadership.leading is None:
        return
    yield from _undone(leadership.leading, select)
    now_ms = leadership.controller.log_now_ms()
    for stream_id, limits in _limited(world, name):
        stamp = select(
            "SELECT append_ms FROM hadron_stream_batch WHERE stream_id = ?"
            " ORDER BY base_offset LIMIT 1",
            stream_id,
        )
        late_ms = now_ms - stamp - limits.max_age_ms if stamp is not None else 0
        if limits.max_age_ms and late_ms > _LATE_MS:
            yield f"retention to stream {stream_id}: a batch is {late_ms} ms too old"
        if limits.max_bytes and (kept := select(_OVER, stream_id, limits.max_bytes)):
            yield f"retention to stream {stream_id}: it keeps {kept} bytes of {limits.max_bytes}"
