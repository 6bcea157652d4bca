"""Names that exist, for shells that complete them.

A shell waits while its user does, so whoever does not answer at once is left out, and nothing is
said about it: words on a terminal would stand in the middle of a command line.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from hadron.client import SyncClient

WITHIN_S: Final = 0.7
"""To connect, and for an answer."""

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def ask_names(
    ctx: click.Context, incomplete: str, names: Callable[[SyncClient], Iterable[str]]
) -> list[str]:
    """What `names` says within `WITHIN_S`, as far as it begins with what is typed; nothing where it
    fails."""
    from hadron.cli.session import session_of

    session = session_of(ctx)
    # No command runs: what stands in front of it was parsed, and nothing else.
    before = ctx.find_root().params
    session.server = session.server or before.get("server")
    session.context = session.context or before.get("context_name")
    with _silence(), contextlib.suppress(Exception), session.connect(timeout_s=WITHIN_S) as client:
        return sorted({name for name in names(client) if name.startswith(incomplete)})
    return []


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing is said between what somebody types and the names."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def names_of(kind: str = "") -> Completer:
    """Names of objects of a kind, "" for that on the command line."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        wanted = kind or ctx.params.get("kind")
        if not wanted:
            return []

        def names(client: SyncClient) -> Iterable[str]:
            namespace = ctx.params.get("namespace") or client.namespace
            within = "" if wanted == "Namespace" else namespace
            return (each.name for each in client.objects(wanted, within))

        return ask_names(ctx, incomplete, names)

    return complete


def complete_replica_sets(
    ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Replica sets; in a list with commas, the last one."""
    listed, comma, last = incomplete.rpartition(",")
    found = ask_names(
        ctx, last, lambda client: (each.name for each in client.topology().replica_sets)
    )
    return [f"{listed}{comma}{name}" for name in found]


def complete_partitions(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Partitions of the stream on the command line; replica sets when click has not got to it."""
    stream = ctx.params.get("stream")
    if not stream:
        return complete_replica_sets(ctx, parameter, incomplete)

    def names(client: SyncClient) -> Iterable[str]:
        spec: Any = client.stream(stream).spec
        return spec.partitions  # type: ignore[no-any-return]

    return ask_names(ctx, incomplete, names)


def complete_contexts(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Names of contexts, from the file."""
    from hadron.client.connecting.contexts import Contexts

    with contextlib.suppress(Exception):
        return sorted(name for name in Contexts.load().servers if name.startswith(incomplete))
    return []
