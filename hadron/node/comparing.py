"""Comparing the logs of several files: how far those of one history are the same.

Every file is in an agreement, or it is said why it is in none: who reads that everything is right
takes each file that was named for one that is like the others.

Members' files of two histories, as when one was left out of a restore, are a problem: both say
that they are members of the set, no two of them would ever run together, and what only the older
history has is in no copy of the newer one. A backup of an earlier history is what it was made for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import apsw

from hadron.model.errors import HadronError
from hadron.node.verified import Agreement, Apart, VerifiedFile
from hadron.storage.database import READ_ERRORS, open_database
from hadron.storage.log import LOG, position_at, read_anchor


def compare(files: Sequence[VerifiedFile]) -> tuple[list[Agreement], list[Apart]]:
    """What agrees with what, replica set by replica set, and what was not compared, and why."""
    agreements: list[Agreement] = []
    apart: list[Apart] = []
    sets: dict[tuple[str, str], list[VerifiedFile]] = {}
    for file in files:
        if file.owner is None:
            apart.append(Apart("", [file.name], "nothing beside it tells whose it is"))
        else:
            sets.setdefault((file.owner.cluster, file.owner.replica_set), []).append(file)
    for (_, replica_set), members in sets.items():
        _compare_set(replica_set, members, agreements, apart)
    return agreements, apart


def _compare_set(
    replica_set: str, files: list[VerifiedFile], agreements: list[Agreement], apart: list[Apart]
) -> None:
    if len(files) == 1:
        why = f"no other file of {replica_set} was given"
        apart.append(Apart(replica_set, _names(files, files), why))
        return
    histories: dict[bytes, list[VerifiedFile]] = {}
    for file in files:
        assert file.owner is not None
        if _end(file):
            histories.setdefault(file.owner.uuid, []).append(file)
        else:
            why = "it has no entry" if file.report.ok else "its log could not be read"
            apart.append(Apart(replica_set, _names([file], files), why))
    # Each begins with a higher epoch than all that was known before it.
    ordered = sorted(histories.values(), key=lambda known: max(map(_epoch, known)))
    for known in ordered:
        _compare_history(replica_set, known, files, agreements, apart)
    apart.extend(_other_history(replica_set, older, ordered[-1], files) for older in ordered[:-1])


def _compare_history(
    replica_set: str,
    known: list[VerifiedFile],
    among: Sequence[VerifiedFile],
    agreements: list[Agreement],
    apart: list[Apart],
) -> None:
    """Files of one history: those together whose logs overlap."""
    left = known
    while left:
        begin = max(file.report.first_lsn for file in left)
        together = [file for file in left if _end(file) >= begin - 1]
        behind = [file for file in left if file not in together]
        if len(together) > 1:
            agreements.append(_agreement(replica_set, together, _names(together, among)))
        if behind:
            apart.append(
                Apart(
                    replica_set,
                    _names(behind, among),
                    f"{'its log ends' if len(behind) == 1 else 'their logs end'} at entry "
                    f"{max(map(_end, behind))}, and {_listed(_names(together, among))} "
                    f"{'has' if len(together) == 1 else 'have'} trimmed what comes before {begin}",
                )
            )
        left = behind


def _other_history(
    replica_set: str,
    older: list[VerifiedFile],
    newer: list[VerifiedFile],
    among: Sequence[VerifiedFile],
) -> Apart:
    names, others = _names(older, among), _listed(_names(newer, among))
    it, has = ("it is", "has") if len(older) == 1 else ("they are", "have")
    shared = _agreement(replica_set, [older[0], newer[0]], []).lsn
    same = f"only entries up to {shared} are the same" if shared else "no entry is the same"
    told = (
        f"{it} of another history, with epoch {max(map(_epoch, older))}, than {others}, with epoch "
        f"{max(map(_epoch, newer))}, as after a restore of the whole set: {same}, and what "
        f"{_listed(names)} {has} beyond is not in the newer history"
    )
    is_problem = not all(file.is_backup for file in older)
    if is_problem:
        told += (
            ", whose members refuse such a one; to be taught it starts with an empty directory "
            "(move this one away, do not delete it)"
        )
    return Apart(replica_set, names, told, is_problem)


def _agreement(replica_set: str, files: Sequence[VerifiedFile], names: list[str]) -> Agreement:
    """Find the last entry that all logs share, by binary search: equal chains, equal prefixes."""
    high = min(map(_end, files))
    low = max(file.report.first_lsn for file in files) - 1
    known: dict[int, set[bytes | None]] = {}
    with _all_open(files) as databases:

        def same(lsn: int) -> bool:
            if lsn not in known:
                known[lsn] = {_chain_at(db, lsn) for db in databases}
            return len(known[lsn]) == 1 and None not in known[lsn]

        bottom = low
        while bottom < high:
            middle = (bottom + high + 1) // 2
            if same(middle):
                bottom = middle
            else:
                high = middle - 1
        # What all begin after may differ as well; nobody has what would show since when.
        is_shared = bottom > 0 and same(bottom)
        chain = _chain_at(databases[0], bottom) if is_shared else None
    agreement = Agreement(replica_set, names, bottom if is_shared else 0, (chain or b"").hex())
    committed = min(file.report.committed_lsn for file in files)
    if not is_shared and 0 < bottom <= committed:
        agreement.problem = (
            f"their logs differ at or before entry {bottom}, all say that entry {committed} is "
            "committed"
        )
    elif bottom < committed and low < committed:
        agreement.problem = (
            f"their logs differ from entry {bottom + 1} on, all say that entry {committed} is "
            "committed"
        )
    return agreement


def _end(file: VerifiedFile) -> int:
    """The last entry, or the anchor of a log that was trimmed whole; 0 without any."""
    return max(file.report.last_lsn, file.report.first_lsn - 1)


def _epoch(file: VerifiedFile) -> int:
    """Of its last entry; 0 when that cannot be read."""
    try:
        with closing(open_database(file.path, file.live)) as db:
            position = position_at(db, _end(file))
    except (HadronError, *READ_ERRORS):
        return 0
    return 0 if position is None else position.ballot.epoch


def _names(files: Sequence[VerifiedFile], among: Sequence[VerifiedFile]) -> list[str]:
    """What people call them; with their directory where others have the same name."""
    every = [file.name for file in among]
    return [
        f"{file.name} ({file.path.parent})" if every.count(file.name) > 1 else file.name
        for file in files
    ]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


@contextmanager
def _all_open(files: Sequence[VerifiedFile]) -> Iterator[list[apsw.Connection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_database(file.path, file.live))) for file in files]


def _chain_at(db: apsw.Connection, lsn: int) -> bytes | None:
    """As it stands in the row: whether it should is for the report on the file."""
    try:
        row = db.execute(f"SELECT chain FROM {LOG} WHERE lsn = ?", (lsn,)).fetchone()
    except READ_ERRORS:
        return None
    if row is None:
        anchor = read_anchor(db)
        return anchor.chain if anchor.lsn == lsn else None
    chain: bytes = row[0]
    return chain
