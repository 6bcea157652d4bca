"""Where a streaming pipeline's query keeps how far it is, and whether that is what its sink knows.

A directory for each pipeline, by its name, its id, and the cluster's; in it

    checkpoint/   Spark's own: the query's id, offsets and state
    follows       the query that this one takes the sink over from, once that was asked for
    lock          held by the runner

Safety rule: a query only begins where the sink knows of none, or of one that it follows by
somebody's word (`--reset`); so a checkpoint that was deleted publishes nothing again (PROTOCOL
E11). Without Spark: commands look here, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hadron.model.errors import ConfigurationError, HadronError, RequestError
from hadron.model.sinks import UNKNOWN, SinkProgress
from hadron.model.units import format_time
from hadron.spark.source.cursors import Cursor, from_json

KNOWN_MS: Final = 30 * 24 * 3_600_000
"""For so long no sink is forgotten once something is published to it (PROTOCOL E11)."""

_UUID_DIGITS: Final = 8
"""Of the cluster's id in a name: for a person's clusters, of which some are made anew."""


def default_directory() -> Path:
    """Where all checkpoints are kept unless it is said otherwise, by the XDG rules."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "hadron" / "checkpoints"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Of one pipeline.

    Attributes:
        pipeline: its name.
        directory: its own.
    """

    pipeline: str
    directory: Path

    @classmethod
    def of(cls, root: Path, pipeline: str, pipeline_id: int, cluster: bytes) -> Checkpoint:
        """Args: `cluster` is the uuid of the metadata set: another cluster has the same ids."""
        digits = cluster.hex()[:_UUID_DIGITS]
        # Without `..`, which Java leaves out by itself: behind a link it would be elsewhere.
        place = Path(os.path.abspath(root))
        return cls(pipeline, place / f"{pipeline}-{pipeline_id}-{digits}")

    @property
    def location(self) -> Path:
        """Spark's `checkpointLocation`."""
        return self.directory / "checkpoint"

    @property
    def query(self) -> str:
        """The id of the query that it is of; "" where there is none."""
        try:
            found = json.loads((self.location / "metadata").read_text())
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        return str(found.get("id", ""))

    def cursors(self, stream_id: int, published: int = -1) -> dict[str, Cursor] | None:
        """Up to where this stream was read by what is published; None where that is not known.

        Args:
            published: the batch that its sink is at: Spark notes it only afterwards.
        """
        batch = max(published, *self._numbers("commits"), -1)
        with contextlib.suppress(OSError):
            text = (self.location / "offsets" / str(batch)).read_text()
            # The version, what the batch was begun with, and a line for each stream that is read.
            for line in text.splitlines()[2:]:
                with contextlib.suppress(ValueError, AttributeError, HadronError):
                    found = from_json(json.loads(line))
                    if all(each.stream_id == stream_id for each in found.values()):
                        return found
        return None

    def follows(self, sink: SinkProgress | None, start: str, now_ms: int | None = None) -> str:
        """The query that this one takes the sink over from; "" where it does not. Raises
        `RequestError` for a query that is not the sink's.

        Args:
            start: where it would begin anew, for the message.
            now_ms: the system's time when None.
        """
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        own, followed = self.query, self._followed()
        if sink is not None:
            if sink.query not in (own, followed):
                raise RequestError(
                    f"pipeline {self.pipeline!r} has published up to batch {sink.batch} "
                    f"({format_time(sink.published_ms)}), of which {self.directory} has no "
                    "checkpoint: was it deleted, or does the pipeline run elsewhere?",
                    "run it where its checkpoint is (--checkpoints DIR); or "
                    f"{self._anew()} at `start: {start}`: what it reads again it publishes again",
                )
            return followed
        under_way = set(self._numbers("offsets")) - set(self._numbers("commits"))
        if not own or not under_way:
            # Where it was forgotten, nothing is under way that could be published already.
            return UNKNOWN if own else followed
        batch = max(under_way)
        if batch or now_ms - self._begun_ms(batch) >= KNOWN_MS:
            raise RequestError(
                f"batch {batch} of pipeline {self.pipeline!r} was under way, and the cluster knows "
                "of none of its batches: its sink was forgotten, or the cluster was restored",
                f"whether that batch is published cannot be told; {self._anew()} at `start: "
                f"{start}`",
            )
        # The first one ended before anything was published: else its sink would be known still.
        return followed

    def check(self, sink: SinkProgress | None) -> None:
        """Raises `RequestError` where another query has gone on with the sink meanwhile."""
        own = self.query
        if sink is not None and own and sink.query not in (own, self._followed()):
            raise RequestError(
                f"another runner has taken pipeline {self.pipeline!r} over: it is at batch "
                f"{sink.batch} of query {sink.query}, and this was query {own}",
                "let one run it: that one; or end it, and " + self._anew(),
            )

    def begin_anew(self, sink: SinkProgress | None) -> None:
        """Forget where the query is; the next one takes the sink over."""
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / "follows.new"
        draft.write_text(sink.query if sink is not None else "")
        draft.replace(self.directory / "follows")
        # Aside first: half of a checkpoint would be one that Spark goes on with.
        aside = self.directory / "checkpoint.old"
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self.location.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """By one runner at a time; the system lets go of it when that ends, however it does. Raises
        `RequestError`."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unreadable(error) from error
        with os.fdopen(handle, "r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(
                    f"pipeline {self.pipeline!r} is run already, by {lock.read() or 'another'}",
                    "a streaming query has one runner; end that one first",
                ) from None
            lock.truncate()
            lock.write(f"process {os.getpid()} on {socket.gethostname()}")
            lock.flush()
            yield

    def _followed(self) -> str:
        try:
            return (self.directory / "follows").read_text().strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise self._unreadable(error) from error

    def _numbers(self, log: str) -> list[int]:
        """Batches that one of Spark's logs has: of the latest ones, as it forgets the others."""
        try:
            names = os.listdir(self.location / log)
        except OSError:
            return []
        return [int(name) for name in names if name.isdecimal()]

    def _begun_ms(self, batch: int) -> int:
        """When it was, as Spark has noted; 0 where that cannot be read."""
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
            text = (self.location / "offsets" / str(batch)).read_text()
            return int(json.loads(text.splitlines()[1])["batchTimestampMs"])
        return 0

    def _anew(self) -> str:
        return f"`hadron pipeline run {self.pipeline} --reset` begins anew"

    def _unreadable(self, error: Any) -> ConfigurationError:
        return ConfigurationError(
            f"the checkpoint in {self.directory} cannot be used: {error}",
            "--checkpoints DIR names another directory for all pipelines",
        )
