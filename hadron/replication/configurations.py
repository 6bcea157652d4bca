"""Which configurations a new leader must have majorities of, beside its own (PROTOCOL B5).

The latest one in the chosen log is not enough, because it may not be committed. History: the log's
committed configuration is {n1, n2, n3}. n1 starts with {n1, n2, n4}, promised by all of them, and
dies with its first entry on n1 and n4. n4 starts with {n1, n4, n5}: it finds that entry, gets
majorities of {n1, n2, n4} and of its own, and commits records on n4 and n5. n2 starts with
{n2, n3}: nobody whom it hears has any of that, {n2, n3} is a majority of {n1, n2, n3}, and the
records are lost (`tests/test_configurations.py` plays it). So a majority is needed of the latest
configuration that is *known to be committed* and of every later one in the log. Knowing of a commit
too late only asks for more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import apsw

from hadron.state import leadership
from hadron.state.leadership import Configuration
from hadron.storage.bodies import damaged_entry
from hadron.storage.log import Entry, read_commands

_READ_AT_ONCE: Final = 1_000


def begun_with(entry: Entry) -> Configuration | None:
    """The configuration with which an entry begins a ballot; None when it does not."""
    started = leadership.decode_started(entry.command)
    if started is None:
        return None
    return Configuration(entry.ballot.epoch, entry.lsn, started.config_digest, started.members)


def in_log(connection: apsw.Connection, applied_lsn: int, head_lsn: int) -> list[Configuration]:
    """The configurations of a whole log, by lsn: from the tables up to `applied_lsn`, from the
    entries after it."""
    found = {
        known.epoch: known
        for known in leadership.configurations(connection)
        if known.lsn <= applied_lsn
    }
    lsn = applied_lsn
    while lsn < head_lsn:
        # Tables that have diverged may be far behind their log.
        until = min(head_lsn, lsn + _READ_AT_ONCE)
        entries = read_commands(connection, lsn + 1, until)
        for configuration in map(begun_with, entries):
            if configuration is not None:
                found.setdefault(configuration.epoch, configuration)
        if len(entries) < until - lsn:
            missing = lsn + len(entries) + 1
            raise damaged_entry(missing, f"entry {missing} is missing from the log")
        lsn = until
    return sorted(found.values(), key=lambda known: known.lsn)


def still_needed(known: Iterable[Configuration], committed_lsn: int) -> list[Configuration]:
    """Those of `known` of which a majority is needed: the last one that is known to be committed,
    and all after it; all of them when none is. Without repetitions, by lsn."""
    by_epoch = {configuration.epoch: configuration for configuration in known}
    ordered = sorted(by_epoch.values(), key=lambda configuration: configuration.lsn)
    committed = [index for index, each in enumerate(ordered) if each.lsn <= committed_lsn]
    return ordered[committed[-1] :] if committed else ordered


def what_is_missing(
    needed: Iterable[Configuration], promising: Collection[str], remembering: Collection[str]
) -> str:
    """What keeps these members from making a ballot, in words; "" when nothing does.

    Args:
        promising: members that promise, or would.
        remembering: those of them that remember the log (PROTOCOL B3).
    """
    for configuration in needed:
        names = configuration.names
        if len(names.intersection(promising)) < configuration.majority:
            return f"a majority, {configuration.majority}, of {configuration}"
        if len(names.intersection(remembering)) < configuration.amnesia_quorum:
            return f"{configuration.amnesia_quorum} of {configuration} that remember the log"
    return ""
