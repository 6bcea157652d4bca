"""Sinks: how far a query has published, and who may go on with it (PROTOCOL E11). Pure.

A sink is a name that a program has chosen for what it writes, such as Spark's `txnId`; a query is
who writes to it, and numbers its batches.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hadron.model.errors import RequestError

UNKNOWN: Final = "none"
"""What a query says that it follows where its sink is not known any more."""


class SinkProgress(NamedTuple):
    """A sink, as it stands.

    Attributes:
        query: whose batches it has; "" of a program without one.
        batch: the highest that is published.
        published_ms: when that was, milliseconds since the Unix epoch.
    """

    name: str
    query: str
    batch: int
    published_ms: int


def is_published(known: SinkProgress | None, query: str, batch: int) -> bool:
    """Whether a sink has this batch of this query already."""
    return known is not None and known.query == query and batch <= known.batch


def check_advance(
    known: SinkProgress | None, name: str, query: str, batch: int, follows: str
) -> None:
    """Raises `RequestError` where a sink cannot advance to this batch of this query.

    Args:
        query: "" for a program that numbers its batches and has no query: it may begin anywhere.
        follows: the query that this one takes the sink over from; `UNKNOWN`: the sink was
            forgotten; "": it does not.
    """
    if known is None:
        if query and batch and follows != UNKNOWN:
            raise RequestError(
                f"query {query} goes on with batch {batch} at sink {name!r}, which is not known: "
                "it was never written to, or was forgotten",
                f"whether batch {batch} is published cannot be told; if it is not, let the query "
                f'begin the sink with .option("reset", "{UNKNOWN}")',
            )
    elif known.query != query:
        if not known.query or follows != known.query:
            raise RequestError(
                f"sink {name!r} is query {known.query or '(none)'}'s, at batch {known.batch}, and "
                f"not query {query or '(none)'}'s: was its checkpoint deleted, or does it share a "
                "txnId?",
                "give each a txnId of its own"
                + (
                    f'; where this one takes over for good, .option("reset", "{known.query}")'
                    if known.query
                    else ""
                ),
            )
    elif batch <= known.batch:
        raise RequestError(
            f"batch {batch} of sink {name!r} is published already, which is at {known.batch}",
            "there is nothing to be done",
        )
