"""Keys that transactions hold, of streams that are declared with `keys: indexed`.

A statement that expects where its key's latest record is was true when it was prepared, and its
record gets its offset later, from an entry that cannot refuse it. Safety rule: until then nobody
else's record of that key is logged. So such a statement has its key alone; a record of another
transaction that is prepared here, and expects nothing, shares its key with others of its kind, for
it cannot be refused later either (PROTOCOL E9).

Locks are of hashes, as the index is (`stream_keys`): two keys that share one share the lock.
"""

from __future__ import annotations

from typing import Final

from hadron.model.errors import ConflictError
from hadron.model.tables import PREFIX
from hadron.state.machine import Context, Feature
from hadron.state.names import label_of
from hadron.state.streams.keys import hashes_of, signed
from hadron.state.transactions import participations
from hadron.state.transactions.locks import over_when

KEY_LOCK: Final = PREFIX + "key_lock"
_ALONE: Final = PREFIX + "key_lock_alone"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {KEY_LOCK}(
    stream_id INTEGER NOT NULL,
    key_hash INTEGER NOT NULL,          -- as the index of keys has it
    prepared_lsn INTEGER NOT NULL,      -- of the transaction that has it
    is_alone INTEGER NOT NULL,          -- 1: it expects where the key's latest record is
    PRIMARY KEY (stream_id, key_hash, prepared_lsn)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {_ALONE} ON {KEY_LOCK}(stream_id, key_hash) WHERE is_alone = 1;
CREATE INDEX IF NOT EXISTS {KEY_LOCK}_by_transaction ON {KEY_LOCK}(prepared_lsn);
"""

_ANY: Final = (
    f"SELECT 1 FROM {KEY_LOCK} INDEXED BY {_ALONE} WHERE stream_id = ? AND is_alone = 1 LIMIT 1"
)
_ALONE_AT: Final = (
    f"SELECT prepared_lsn FROM {KEY_LOCK} INDEXED BY {_ALONE}"
    " WHERE stream_id = ? AND key_hash = ? AND is_alone = 1 AND prepared_lsn != ?"
)
_AT: Final = (
    f"SELECT prepared_lsn FROM {KEY_LOCK} WHERE stream_id = ? AND key_hash = ?"
    " AND prepared_lsn != ? ORDER BY prepared_lsn"
)
_TAKE: Final = (
    f"INSERT INTO {KEY_LOCK} VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " is_alone = max(is_alone, excluded.is_alone)"
)
_RELEASE: Final = f"DELETE FROM {KEY_LOCK} WHERE prepared_lsn = ?"

_NOBODY: Final = -1
"""No entry has this number."""


def check_free(context: Context, stream_id: int, packed: bytes) -> None:
    """Records with keys of these hashes are about to be logged. Raises `ConflictError` when a
    transaction that is prepared here has one of them alone."""
    if packed and _is_any_alone(context, stream_id):
        for key_hash in _distinct(packed):
            _check(context, _ALONE_AT, (stream_id, key_hash, _NOBODY))


def take(
    context: Context, prepared_lsn: int, stream_id: int, packed: bytes, *, alone: bool
) -> None:
    """Give them to a transaction that is prepared here. What it has itself is its own, whichever of
    its statements came first.

    Raises `ConflictError` when another has one of them, `alone` or not, unless neither is.
    """
    keys = [(stream_id, key_hash, prepared_lsn) for key_hash in _distinct(packed)]
    if alone or _is_any_alone(context, stream_id):
        for key in keys:
            _check(context, _AT if alone else _ALONE_AT, key)
    context.db.executemany(_TAKE, [(*key, int(alone)) for key in keys])


def release(context: Context, prepared_lsn: int) -> None:
    """The transaction is over here."""
    context.db.execute(_RELEASE, (prepared_lsn,))


def _is_any_alone(context: Context, stream_id: int) -> bool:
    return context.db.execute(_ANY, (stream_id,)).fetchone() is not None


def _distinct(packed: bytes) -> list[int]:
    return [signed(each) for each in dict.fromkeys(hashes_of(packed)) if each]


def _check(context: Context, query: str, key: tuple[int, int, int]) -> None:
    row = context.db.execute(query, key).fetchone()
    if row is not None:
        transaction = participations.name_of(context.db, row[0])
        raise ConflictError(
            f"transaction {transaction} holds a key of {label_of(context.db, key[0])} "
            f"{context.place} that a record was to be logged with",
            over_when(transaction),
        )


FEATURE: Final = Feature(name="key locks", tables=_TABLES)
