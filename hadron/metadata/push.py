"""What the metadata set's leader says next to one other replica set, so that this comes to have
the schema. Pure; `pusher` carries it out.

Safety rule: a push begins where the other side says that its own committed schema stands, never
where an earlier push should have brought it. Its parts follow each other without a gap; anything
else that comes in between, and the other side is asked again. (Its leader may have stopped between
the answer and the commit, or another node leads there now.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from hadron.model.schema import RegisteredSet, Tombstone
from hadron.state.adoption import PART_BYTES, Changes, StoredObject

SHOWN_OF_LOST: Final = 10
"""Of what a set has that the metadata set has lost, so much is named one by one."""

_LABEL_CHARACTERS: Final = 1_000
"""Room for a partition and a name; the other side may say anything."""

_ROW_BYTES = 96
"""Of an object beside its specification and its names, and of a deletion; generous."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the other side who it is and where its schema stands."""


@dataclass(frozen=True, slots=True)
class Register:
    """Log who has introduced itself; a name belongs to who had it first."""

    name: str
    uuid: bytes
    epoch: int
    above_index: int = 0
    """See `state.registry.RegisterReplicaSet`."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the other side that it is not the one whose name it has."""

    reason: str


@dataclass(frozen=True, slots=True)
class Read:
    """Read what has changed since this index; everything that there is, with `whole`."""

    from_index: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Send one part, and wait until it is committed there."""

    changes: Changes
    part: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be said before something changes."""


_Standing = tuple[int, int | None, tuple[str, bytes, int] | None, bool]
"""The metadata set's index; the other side's, its identity, and whether what it has is strange."""

Step = Ask | Register | Refuse | Read | Send | Wait


class Push:
    """One conversation: from a connection's beginning to its end.

    Args:
        own_index: where the metadata set's schema stands.
        own_uuid: the metadata set's identity.
    """

    def __init__(self, own_index: int, own_uuid: bytes) -> None:
        self._own_index = own_index
        self._own_uuid = own_uuid
        self._position: int | None = None
        """Where the other side's schema stands; None when it must be asked."""
        self._identity: tuple[str, bytes, int] | None = None
        self._is_registered = False
        self._is_strange = False
        """What the other side has comes from another history of the metadata set."""
        self._beyond = ""
        """That the other side was ahead when it was asked first, in words."""
        self._has_lost = ""
        """What it has of what the metadata set has lost, in words: as its latest answer says."""
        self._refusal: str | None = None
        self._untaken: tuple[str, _Standing] | None = None
        """Why the other side has not taken what was pushed, and where both stood: as long as they
        stand there, it would say the same again."""
        self._parts: list[Changes] = []
        self._next_part = 0

    @property
    def trouble(self) -> str:
        """What is wrong, in words; "" when nothing is."""
        return self._refused_for or self._has_lost or self._beyond

    @property
    def refusal(self) -> Refuse | None:
        """What the other side was told and is to be told again: it forgets what nobody repeats."""
        return Refuse(self._refused_for) if self._refused_for else None

    @property
    def _refused_for(self) -> str:
        if self._refusal is not None:
            return self._refusal
        if self._untaken is not None and self._untaken[1] == self._standing(self._own_index):
            return self._untaken[0]
        return ""

    def _standing(self, own_index: int) -> _Standing:
        return own_index, self._position, self._identity, self._is_strange

    @property
    def is_in_step(self) -> bool:
        """The other side has everything."""
        return self._is_registered and not self._is_strange and self._position == self._own_index

    def next(self) -> Step:
        if self._refused_for:
            return Wait()
        if self._position is None or self._identity is None:
            return Ask()
        if not self._is_registered:
            is_new_history = self._is_strange or self._position > self._own_index
            return Register(*self._identity, self._position if is_new_history else 0)
        if self._parts:
            return Send(
                self._parts[self._next_part],
                self._next_part,
                self._next_part == len(self._parts) - 1,
            )
        if self._position < self._own_index:
            return Read(self._position, self._is_strange)
        return Wait()

    def schema_moved(self, own_index: int) -> None:
        """The metadata set's schema stands at `own_index` now. Parts on their way lead to an
        earlier index, and the rest follows them."""
        self._own_index = own_index

    def heard(
        self,
        name: str,
        uuid: bytes,
        epoch: int,
        index: int,
        source: bytes,
        has_lost: Sequence[str] = (),
    ) -> None:
        """The other side has answered: who it is, where its schema stands, from which metadata set
        it has that (empty: from none), and what it has that this one knows to have lost."""
        self._has_lost = _told_of_lost(has_lost) if has_lost else ""
        is_strange = source not in (b"", self._own_uuid)
        identity = name, uuid, epoch
        if identity != self._identity or (is_strange and not self._is_strange):
            self._is_registered = False
            self._drop_parts()
        self._identity, self._is_strange = identity, is_strange
        if index > self._own_index and not is_strange:
            # Its index goes on above all that others have seen, or one id would mean two objects.
            # (Two of three disks are gone; `recover` goes on with a log that ends at 5, and an
            # object that is made there then has the id of one that this set was pushed at 6.)
            self._beyond = _told_beyond(index, self._own_index)
            self._is_registered = False
            self._drop_parts()
        self._note_position(index)

    def _note_position(self, index: int) -> None:
        """The other side's word is the only thing that counts."""
        if self._parts and index == self._parts[0].from_index:
            self._next_part += 1
            if self._next_part == len(self._parts):
                # The last part has taken no effect.
                self._drop_parts()
        else:
            self._drop_parts()
        self._position = index

    def _drop_parts(self) -> None:
        self._parts, self._next_part = [], 0

    def registered(self) -> None:
        self._is_registered = True

    def refused(self, reason: str) -> Refuse:
        """The name belongs to another set: the other side is told, and gets nothing."""
        self._refusal = reason
        return Refuse(reason)

    def was_not_taken(self, reason: str) -> None:
        """The other side refuses what the parts lead to, for good: it is not pushed again before
        the schema has moved, or the other side stands elsewhere. (Each time all parts but the last
        would be logged there, for nothing.)"""
        self._untaken = reason, self._standing(self._parts[0].to_index)
        self._drop_parts()

    def has_read(self, changes: Changes) -> None:
        """What was asked for with `Read`."""
        if changes.from_index == self._position and changes.to_index > changes.from_index:
            self._parts, self._next_part = split(changes), 0


_MENDS: Final = (
    "as after `hadron recover`, and stays in this set; compare `hadron get` of both, apply again "
    "what was changed, and declare under another name what only this set has, for it keeps its own "
    "here"
)


def _told_beyond(index: int, own_index: int) -> str:
    return (
        f"it knows the schema at index {index}, the metadata set stood at {own_index}: what was "
        f"changed in between is lost there, {_MENDS}"
    )


def _told_of_lost(labels: Sequence[str]) -> str:
    some = ", ".join(each[:_LABEL_CHARACTERS] for each in labels[:SHOWN_OF_LOST])
    more = ", …" if len(labels) > SHOWN_OF_LOST else ""
    return f"it knows {some}{more}: that is lost at the metadata set, {_MENDS}"


def split(changes: Changes, part_bytes: int = PART_BYTES) -> list[Changes]:
    """In parts of at most `part_bytes`, or one object, each; at least one."""
    parts: list[Changes] = []
    nothing = Changes(changes.from_index, changes.to_index, changes.is_whole, lost=changes.lost)
    total = 0
    for field in ("deleted", "replica_sets", "objects"):
        items: tuple[Item, ...] = getattr(changes, field)
        for some, size in _slices(items, part_bytes):
            total += size
            parts.append(msgspec.structs.replace(nothing, **{field: tuple(some)}))
    return parts if total > part_bytes else [changes]


Item = StoredObject | Tombstone | RegisteredSet


def _slices(items: tuple[Item, ...], part_bytes: int) -> Iterator[tuple[list[Item], int]]:
    """With the bytes of each."""
    some: list[Item] = []
    total = 0
    for item in items:
        size = size_of(item)
        if some and total + size > part_bytes:
            yield some, total
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some, total


def size_of(item: Item) -> int:
    """Its bytes in a part, about."""
    # On the event loop, for every object of the schema where somebody knows nothing of it.
    size = _ROW_BYTES + _utf8_bytes(item.name)
    if isinstance(item, RegisteredSet):
        return size + len(item.uuid)
    size += _utf8_bytes(item.kind) + _utf8_bytes(item.namespace)
    return size + _utf8_bytes(item.spec_json) if isinstance(item, StoredObject) else size


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
