"""The blocking face of `hadron.client.sinks.sink`, made of it by `make faces`."""

from __future__ import annotations

from collections.abc import Sequence

from hadron.client.blocking.bases import PartBase
from hadron.client.sinks.sink import DEFAULT_KEPT_S, Sink, StagedAttempt
from hadron.model.sinks import SinkProgress


class SyncSink(PartBase[Sink]):
    """What a program writes to in batches that its threads stage. Made by `SyncClient.sink`; its
    calls may be repeated, from any process.

    A *write* is what is published together: one batch of a query, with 16 random bytes for a name
    (`new_token`), and each thread that stages some of it, or repeats that, is an *attempt* with a
    name of its own.
    """

    def progress(self) -> SinkProgress | None:
        """How far it is; None where nothing was published, or that was forgotten."""
        return self._call(lambda sink: sink.progress())

    def is_published(self, query: str, batch: int, follows: str = "") -> bool:
        """Whether a batch is published already; asked before anything of it is staged.

        Raises `RequestError` where it could not be published: as `publish` does.
        """
        return self._call(lambda sink: sink.is_published(query, batch, follows))

    def stage(
        self,
        stream: str,
        partition: str,
        batches: Sequence[bytes],
        *,
        write: bytes,
        attempt: bytes,
        first: int,
        kept_s: float = DEFAULT_KEPT_S,
        label: str = "",
    ) -> None:
        """Keep encoded record batches at a partition, in no stream, until they are published.

        Args:
            batches: 2 MiB and `limits.MAX_ITEMS` at most, or one.
            first: how many of the attempt were staged at this partition before.
            kept_s: they go when they are not published for so long after the latest of an attempt.
            label: of the write, for people.

        Raises `NotFoundError` for a stream or a partition that does not exist, `RequestError` for
        an attempt that has expired or was given up.
        """
        self._call(
            lambda sink: sink.stage(
                stream,
                partition,
                batches,
                write=write,
                attempt=attempt,
                first=first,
                kept_s=kept_s,
                label=label,
            )
        )

    def publish(
        self,
        stream: str,
        staged: Sequence[StagedAttempt],
        *,
        write: bytes,
        query: str = "",
        batch: int = 0,
        follows: str = "",
    ) -> bool:
        """Publish what these attempts have staged, in their order, all or none of it; returns
        whether this call has, and not an earlier one.

        Args:
            query: whose batch it is: a sink belongs to one, or to programs that have none.
            batch: higher than the last one. One that is not is known, and nothing is done.
            follows: the query that this one takes the sink over from; "none" where the sink is not
                known any more.

        Raises:
            RequestError: it is another query's sink; or what was staged has expired.
            PeerError, CommitUnknownError: a replica set did not answer for 120 s; call it again.
        """
        return self._call(
            lambda sink: sink.publish(
                stream, staged, write=write, query=query, batch=batch, follows=follows
            )
        )

    def give_up(self, write: bytes, partitions: Sequence[str]) -> None:
        """What a write has staged at these partitions is not wanted any more, and goes at once.
        What is published stays: it is staged no more.
        """
        self._call(lambda sink: sink.give_up(write, partitions))
