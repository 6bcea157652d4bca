"""What tables are read, changed and shown by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import apsw

from hadron.partition.controller import Controller
from hadron.serving.schema_copy import SchemaCopy
from hadron.serving.visible import VisibleStreams
from hadron.sim.evidence import node_files
from hadron.sim.evidence.node_files import NodeFile
from hadron.sim.watch.entries import tables_lsn
from hadron.sim.watch.judged import CHANGES
from hadron.sim.watch.known import Known, Wrappers
from hadron.state.machine import Command, Context, StateMachine
from hadron.storage.store import Readers


class HearsTables:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (Controller, {"query": self.queries, "wait_committed": self.waits}),
            (Readers, {"run_once": self.reads}),
            (
                VisibleStreams,
                {
                    "read": self.reads_batches,
                    "recent": self.has_batches,
                    "ballot_before": self.bounded,
                    "learn_ends": self.bounded,
                    "offset_at": self.bounded,
                },
            ),
            (SchemaCopy, {"_read_committed": self.reads_schema, "_read_visible": self.bounded}),
            (
                StateMachine,
                {
                    "apply": self.applies,
                    "apply_part": self.applies_part,
                    "apply_statement": self.does,
                },
            ),
            (node_files, {"_read_tables": self.reads_file}),
        ]

    def reads(self, original: Any) -> Any:
        async def run_once(readers: Readers, read: Callable[[apsw.Connection], Any]) -> Any:
            if readers not in self._known.by_part:
                return await original(readers, read)
            stood = 0

            def noted(connection: apsw.Connection) -> Any:
                nonlocal stood
                result = read(connection)
                stood = tables_lsn(connection)
                return result

            result = await original(readers, noted)
            self._known.answers.read(stood)
            return result

        return run_once

    def waits(self, original: Any) -> Any:
        async def wait_committed(controller: Controller, lsn: int) -> None:
            await original(controller, lsn)
            self._known.answers.waited(controller)

        return wait_committed

    def queries(self, original: Any) -> Any:
        async def query(controller: Controller, read: Callable[[Any], Any]) -> Any:
            before = self._known.answers.begin_bounded()
            has_read = False

            def noted(db: Any) -> Any:
                nonlocal has_read
                result = read(db)
                has_read = True
                return result

            try:
                return await original(controller, noted)
            except BaseException:
                if has_read:
                    # The wait failed, and what was read went with it. What a read raises is told.
                    self._known.answers.end_bounded(before)
                raise

        return query

    def bounded(self, original: Any) -> Any:
        async def read(*given: Any, **named: Any) -> Any:
            before = self._known.answers.begin_bounded()
            try:
                return await original(*given, **named)
            finally:
                self._known.answers.end_bounded(before)

        return read

    def reads_batches(self, original: Any) -> Any:
        async def read(visible: VisibleStreams, stream_id: int, *given: Any) -> Any:
            before = self._known.answers.begin_bounded()
            try:
                found = await original(visible, stream_id, *given)
            finally:
                self._known.answers.end_bounded(before)
            mark = self._known.ballots.marks.get((visible._replica_set, visible._ballot))
            if mark is not None and found:
                self._known.answers.moves(mark, stream_id, found[-1].next_offset)
            self._known.records.given(visible, stream_id, found)
            return found

        return read

    def has_batches(self, original: Any) -> Any:
        def recent(visible: VisibleStreams, stream_id: int, *given: Any) -> Any:
            found = original(visible, stream_id, *given)
            self._known.records.given(visible, stream_id, found or ())
            return found

        return recent

    def reads_schema(self, original: Any) -> Any:
        async def read_committed(copy: SchemaCopy, read: Any) -> Any:
            before = self._known.answers.begin_bounded()
            result = await original(copy, read)
            view = self._known.by_part.get(copy._store)
            if result is not None and view is not None:
                self._known.answers.schema_read(view, before)
            self._known.answers.end_bounded(before)
            return result

        return read_committed

    def applies(self, original: Any) -> Any:
        def apply(state_machine: StateMachine, context: Context, command: Command) -> Any:
            looked = partial(self._known.entries.applied, partial(original, state_machine))
            if isinstance(command, CHANGES):
                looked = partial(self._known.judged.applied, looked)
            return self._known.histories.applied(
                looked, context, command, self._known.entries.is_heard
            )

        return apply

    def applies_part(self, original: Any) -> Any:
        def apply(state_machine: StateMachine, context: Context, command: Command) -> Any:
            return self._known.entries.applied(partial(original, state_machine), context, command)

        return apply

    def does(self, original: Any) -> Any:
        def do(state_machine: StateMachine, context: Context, command: Command) -> Any:
            return self._known.entries.done(partial(original, state_machine), context, command)

        return do

    def reads_file(self, original: Any) -> Any:
        def read_tables(file: NodeFile, db: apsw.Connection) -> None:
            original(file, db)
            view = self._known.views.get(file.name)
            if view is not None and view.name not in self._known.mixed:
                self._known.judging(
                    self._known.histories.read_file, file.name, view.replica_set, db
                )

        return read_tables
