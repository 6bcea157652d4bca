"""The connector, made to fail where a query may: sources that tests register with Spark.

Spark runs writers in processes of its own, which find a switch in the file system.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from hadron.spark.source.readers import HadronDataSource
from hadron.spark.source.writers import StreamWriter

_SWITCH: Final = Path(tempfile.gettempdir()) / f"hadron-crash-{os.getuid()}"


class Crash:
    """While it is entered, a query fails at a batch."""

    def __init__(self, at_batch: int) -> None:
        self.at_batch = at_batch

    def __enter__(self) -> Crash:
        _SWITCH.write_text(str(self.at_batch))
        return self

    def __exit__(self, *_: object) -> None:
        _SWITCH.unlink(missing_ok=True)

    @property
    def happened(self) -> bool:
        return _SWITCH.read_text() == "happened"


def _is_time(batch: int) -> bool:
    """Whether to fail now, which is done once."""
    if not _SWITCH.exists() or _SWITCH.read_text() != str(batch):
        return False
    _SWITCH.write_text("happened")
    return True


class MadeError(Exception):
    def __init__(self) -> None:
        super().__init__("made to fail")


_Messages = Sequence[WriterCommitMessage | None]


class _BeforeCommit(StreamWriter):
    def commit(self, messages: _Messages, batchId: int) -> None:  # noqa: N803
        if _is_time(batchId):
            raise MadeError
        super().commit(messages, batchId)


class _Lost(_BeforeCommit):
    """As if its driver had died there: nobody aborts."""

    def abort(self, messages: _Messages, batchId: int) -> None:  # noqa: N803
        pass


class _BehindCommit(StreamWriter):
    """Spark does not hear that it is committed, and aborts it."""

    def commit(self, messages: _Messages, batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if _is_time(batchId):
            raise MadeError


class _WithinCommit(StreamWriter):
    """The process dies while the leader decides."""

    def commit(self, messages: _Messages, batchId: int) -> None:  # noqa: N803
        if _is_time(batchId):
            _die_when_said()
        super().commit(messages, batchId)


def _die_when_said() -> None:
    from hadron.client.transactions.driver_call import COMMIT, DriverCall

    say: Any = DriverCall.say

    def say_and_die(self: Any, spoken: Any, statements: Any, bodies: Any, end: Any) -> None:
        say(self, spoken, statements, bodies, end)
        if end == COMMIT:
            # What was said has left this process, or has not.
            print("made to fail", file=sys.stderr, flush=True)
            os._exit(1)

    DriverCall.say = say_and_die  # type: ignore[method-assign]


class _Source(HadronDataSource):
    writer_class: type[StreamWriter]

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        super().streamWriter(schema, overwrite)
        return self.writer_class(_options(self))


def _options(source: HadronDataSource) -> Mapping[str, str]:
    return source.options


class BeforeCommit(_Source):
    writer_class = _BeforeCommit

    @classmethod
    def name(cls) -> str:
        return "before_commit"


class Lost(_Source):
    writer_class = _Lost

    @classmethod
    def name(cls) -> str:
        return "staged_and_lost"


class BehindCommit(_Source):
    writer_class = _BehindCommit

    @classmethod
    def name(cls) -> str:
        return "behind_commit"


class WithinCommit(_Source):
    writer_class = _WithinCommit

    @classmethod
    def name(cls) -> str:
        return "within_commit"


SOURCES: Final = (BeforeCommit, Lost, BehindCommit, WithinCommit)
