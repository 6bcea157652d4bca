"""The replica sets that a node knows of: statements, merged by rules that end in the same
directory everywhere, whatever the order in which they are heard.

Pure: `discovery` carries statements between nodes. The rules:

- A name belongs to one uuid. Which one is for the metadata set to say (`registered`); until it has,
  a node keeps the one that it heard of first. The other is refused, and reported by every node that
  hears of it. A node never gives up its own.
- Of one uuid, the configuration that a majority serves by says who the members are, the newest
  such; before there is one, that of the highest epoch.
- Where a node is, it says itself, and its latest word counts: an address may change without a new
  epoch.
- Another uuid with a higher epoch (a set that was restored) is passed on beside the one that is
  known, so that the metadata set hears of it and can register it. What came before it, at the same
  addresses or told by others only, is an echo: it is nobody's who is there, and no trouble.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import xxhash

from hadron.model.replica_sets import KnownNode, KnownSet

REFUSED_FOR_S: Final = 60.0
"""How long a refused statement is told of after it was last heard; a node speaks every 10 s."""

_CLAIMS: Final = 3
_CLAIM_PAUSE_S: Final = 30.0
"""A node contradicts what is said of its address at once, but for a second process that runs under
its name and contradicts as well: then after a few times only as often as this."""
_MAX_SETS: Final = 4096
_MAX_BYTES: Final = 1 << 20
"""Of all statements, before those that are known grow no more: a quarter of what one message
holds, and each node sends them all."""
_MAX_REFUSED: Final = 64


@dataclass(frozen=True, slots=True)
class Refused:
    """A statement that was not taken, and why in words."""

    said: KnownSet
    reason: str


@dataclass(slots=True)
class Merged:
    """What came of some statements. `refused` has those only that were not refused lately."""

    changed: bool = False
    refused: list[Refused] = field(default_factory=list)


class Directory:
    """One node's.

    Args:
        own: what the node says of its own replica set.
        node: the node's name.
    """

    def __init__(self, own: KnownSet, node: str) -> None:
        self._own = own
        self._node = node
        self._sets: dict[str, KnownSet] = {own.name: own}
        self._contenders: dict[str, KnownSet] = {}
        self._registered: dict[str, tuple[int, bytes]] = {}
        self._refused: dict[tuple[str, bytes], tuple[Refused, float]] = {}
        self._claims = 0
        self._claimed_s = float("-inf")
        self._disputed = ""

    # --- reading --------------------------------------------------------------------------------

    @property
    def own(self) -> KnownSet:
        """The node's own replica set, as the cluster knows it."""
        return self._sets[self._own.name]

    def find(self, name: str) -> KnownSet | None:
        return self._sets.get(name)

    def sets(self) -> tuple[KnownSet, ...]:
        """Every replica set, by name."""
        return tuple(self._sets[name] for name in sorted(self._sets))

    def contenders(self) -> tuple[KnownSet, ...]:
        """Sets with a higher epoch than the one whose name they have, which wait to be registered
        in its place."""
        return tuple(self._contenders[name] for name in sorted(self._contenders))

    def statements(self) -> tuple[KnownSet, ...]:
        """All that is told to other nodes."""
        return self.sets() + self.contenders()

    def digest(self) -> bytes:
        """16 bytes that are the same where the statements are: xxh3-128 over their JSON."""
        told = [
            (
                each.name,
                each.epoch,
                each.uuid.hex(),
                each.agreed,
                each.registered,
                sorted((node.name, node.role, node.address, node.stated_ms) for node in each.nodes),
            )
            for each in self.statements()
        ]
        return xxhash.xxh3_128_digest(msgspec.json.encode(told))

    def troubles(self, now_s: float) -> list[str]:
        """What people must know, in words."""
        self._refused = {
            key: kept for key, kept in self._refused.items() if kept[1] + REFUSED_FOR_S > now_s
        }
        told = [refused.reason for refused, _ in self._refused.values()]
        if self._disputed and self._claimed_s + REFUSED_FOR_S > now_s:
            told.append(self._disputed)
        return told

    # --- hearing --------------------------------------------------------------------------------

    def tell_own(self, own: KnownSet, now_s: float) -> bool:
        """The node's own statement has changed, perhaps; returns whether the directory did."""
        before, self._own = self._sets[own.name], own
        # What was heard before this set was founded may have been about another set.
        known = _join(before, own) if before.uuid == own.uuid else own
        self._sets[own.name] = self._with_own_address(known, now_s)
        self._note_registration(own.name)
        return self._sets[own.name] != before

    def merge(self, statements: Iterable[KnownSet], now_s: float, of: str = "") -> Merged:
        """Take in what another node knows.

        Args:
            now_s: monotonic, for forgetting what was refused long ago.
            of: the speaker's own replica set.
        """
        merged = Merged()
        size = sum(map(_size, self.statements()))
        for said in statements:
            before = self._sets.get(said.name), self._contenders.get(said.name)
            had = [_size(each) for each in before if each]
            is_one_more = not had and len(self._sets) >= _MAX_SETS
            # One may take the place of a smaller one, so in all it may be twice as much.
            grows = _size(said) > max(had, default=0) and said.name != self._own.name
            if is_one_more or (grows and size + _size(said) > _MAX_BYTES):
                self._refuse(
                    merged,
                    said,
                    f"this node knows {len(self._sets)} replica sets "
                    f"already, in {size} bytes: {said.name} is too much",
                    now_s,
                )
                continue
            self._hear(merged, said, now_s, is_first_hand=said.name == of)
            self._note_registration(said.name)
            self._forget_replaced(said.name, before[0])
            after = self._sets.get(said.name), self._contenders.get(said.name)
            merged.changed |= after != before
            size += sum(_size(each) for each in after if each) - sum(had)
        return merged

    def register(self, name: str, uuid: bytes, epoch: int) -> bool:
        """The metadata set gives `name` to `uuid`, which stands at `epoch`; whether this changed
        anything. An earlier registration has a lower epoch."""
        if epoch <= self._registered.get(name, (0, b""))[0]:
            return False
        before = self._sets.get(name)
        self._registered[name] = epoch, uuid
        self._note_registration(name)
        self._forget_replaced(name, before)
        return self._sets.get(name) != before

    # --- inside ---------------------------------------------------------------------------------

    def _hear(self, merged: Merged, said: KnownSet, now_s: float, *, is_first_hand: bool) -> None:
        known = self._sets.get(said.name)
        if known is None:
            self._sets[said.name] = said
        elif not said.uuid and known.uuid:
            # From before it was founded, or from a member whose disk is empty and will be taught.
            return
        elif said.uuid and not known.uuid and said.name == self._own.name:
            # It is this set, and this node will be taught; or it is another one, which this node
            # must not take for its own: it would say where its members are.
            return
        elif said.uuid == known.uuid:
            self._set(said.name, _join(known, said), now_s)
            if known.epoch == said.epoch and known.members != said.members:
                self._refuse(
                    merged, said, _two_configurations(self._sets[said.name], said, known), now_s
                )
        elif not known.uuid:
            self._sets[said.name] = said
        else:
            self._hear_of_another(merged, known, said, now_s, is_first_hand=is_first_hand)

    def _hear_of_another(
        self, merged: Merged, known: KnownSet, said: KnownSet, now_s: float, *, is_first_hand: bool
    ) -> None:
        """Two uuids, one name."""
        is_own = known.name == self._own.name
        if said.epoch < known.epoch and (
            _share_an_address(said, known)
            or (known.registered > said.registered and not is_first_hand)
        ):
            # Of before a restore: whoever says so has not heard of it yet.
            if known.registered <= said.registered:
                self._refuse(merged, said, _not_registered_yet(known, said), now_s)
            return
        if said.registered > known.registered and not is_own:
            self._take_over(said)
            if said.epoch <= known.epoch:
                self._refuse(merged, known, _second_of_name(said, known), now_s)
            return
        if said.agreed and said.epoch > known.epoch and not is_own:
            rival = self._contenders.get(said.name)
            if rival is None or said.epoch > rival.epoch:
                self._contenders[said.name] = said
            elif rival.uuid == said.uuid:
                self._contenders[said.name] = _join(rival, said)
        refusal = _own_name_taken if is_own else _second_of_name
        self._refuse(merged, said, refusal(known, said), now_s)

    def _take_over(self, registered: KnownSet) -> None:
        self._contenders.pop(registered.name, None)
        self._refused.pop((registered.name, registered.uuid), None)
        self._sets[registered.name] = registered

    def _set(self, name: str, known: KnownSet, now_s: float) -> None:
        is_own = name == self._own.name
        self._sets[name] = self._with_own_address(known, now_s) if is_own else known

    def _with_own_address(self, known: KnownSet, now_s: float) -> KnownSet:
        """The node's own word about its address is above everybody else's, also when its clock has
        been set back since it last gave it."""
        own = self._own.node(self._node)
        assert own is not None
        heard = known.node(self._node)
        if heard is None or (heard.address, heard.stated_ms) == (own.address, own.stated_ms):
            return known
        if heard.stated_ms >= own.stated_ms:
            newer = heard.stated_ms
            if heard.address != own.address:
                if not self._may_claim(heard.address, now_s):
                    return known
                newer += 1
            own = replace(own, stated_ms=newer)
            self._own = replace(
                self._own,
                nodes=tuple(own if node.name == own.name else node for node in self._own.nodes),
            )
        mine = replace(heard, address=own.address, stated_ms=own.stated_ms)
        return replace(
            known, nodes=tuple(mine if node.name == mine.name else node for node in known.nodes)
        )

    def _may_claim(self, address: str, now_s: float) -> bool:
        if self._claims >= _CLAIMS and now_s < self._claimed_s + _CLAIM_PAUSE_S:
            return False
        self._claims += 1
        self._claimed_s = now_s
        if self._claims > 1:
            # Once is a clock that was set back, or this node's own word from before it moved.
            self._disputed = (
                f"{self._node} of {self._own.name} is said to be at {address}, again and again: "
                "does a second process run with this node's name?"
            )
        return True

    def _note_registration(self, name: str) -> None:
        """What this node was told by the metadata set, as soon as there is a statement for it."""
        epoch, uuid = self._registered.get(name, (0, b""))
        known, contender = self._sets.get(name), self._contenders.get(name)
        if not epoch or known is None:
            return
        if known.uuid == uuid:
            if known.registered < epoch:
                self._sets[name] = replace(known, registered=epoch)
        elif contender is not None and contender.uuid == uuid and name != self._own.name:
            self._take_over(replace(contender, registered=max(epoch, contender.registered)))

    def _forget_replaced(self, name: str, before: KnownSet | None) -> None:
        """Once a set is registered, what came before it is no trouble; if that runs after all, its
        nodes will be heard again."""
        known = self._sets.get(name)
        if known is None or known.registered <= (before.registered if before else 0):
            return
        for key, (refused, _) in [*self._refused.items()]:
            if refused.said.name == name and refused.said.epoch < known.epoch:
                del self._refused[key]

    def _refuse(self, merged: Merged, said: KnownSet, reason: str, now_s: float) -> None:
        key = said.name, said.uuid
        kept = self._refused.pop(key, None)
        refused = Refused(said, reason)
        if kept is None or kept[1] + REFUSED_FOR_S <= now_s:
            merged.refused.append(refused)
        self._refused[key] = refused, now_s
        while len(self._refused) > _MAX_REFUSED:
            del self._refused[next(iter(self._refused))]


def _size(said: KnownSet) -> int:
    """Bytes, about, that it takes to tell somebody."""
    return len(said.name) + 64 + sum(len(node.name) + len(node.address) + 32 for node in said.nodes)


def _join(known: KnownSet, said: KnownSet) -> KnownSet:
    """Two statements about one set."""
    newer = max(known, said, key=lambda each: (each.agreed, each.epoch, each.members))
    other = said if newer is known else known
    return replace(
        newer,
        uuid=newer.uuid or other.uuid,
        nodes=tuple(_latest(node, other.node(node.name)) for node in newer.nodes),
        registered=max(known.registered, said.registered),
    )


def _latest(node: KnownNode, other: KnownNode | None) -> KnownNode:
    """The later word about where a node is; its role is the newer configuration's."""
    if other is None or (other.stated_ms, other.address) <= (node.stated_ms, node.address):
        return node
    return replace(node, address=other.address, stated_ms=other.stated_ms)


def describe_set(known: KnownSet) -> str:
    """A replica set for people who have to find out which one it is."""
    nodes = ", ".join(f"{node.name} at {node.address}" for node in known.nodes)
    return f"uuid {known.uuid.hex()[:8] or 'none yet'}, epoch {known.epoch}, {nodes}"


def _share_an_address(one: KnownSet, other: KnownSet) -> bool:
    return not {node.address for node in one.nodes}.isdisjoint(node.address for node in other.nodes)


_NAMES_ARE_UNIQUE: Final = "names of replica sets are unique in a cluster: rename or stop one"


def _not_registered_yet(new: KnownSet, old: KnownSet) -> str:
    return (
        f"{new.name} has a new history, as after a restore ({describe_set(new)}); the metadata set "
        f"has not registered it yet, and others go by the one of before ({describe_set(old)})"
    )


def _second_of_name(kept: KnownSet, refused: KnownSet) -> str:
    if kept.epoch < refused.epoch and (refused.agreed or _share_an_address(kept, refused)):
        return (
            f"{refused.name} has a new history, as after a restore ({describe_set(refused)}); it "
            "is not used before the metadata set has registered it in the place of the one with "
            f"{describe_set(kept)}"
        )
    why = ", which the metadata set has registered" if kept.registered else ", which was first"
    return (
        f"two replica sets are called {refused.name}: the one with {describe_set(refused)} is "
        f"refused; the name belongs to that with {describe_set(kept)}{why} ({_NAMES_ARE_UNIQUE})"
    )


def _own_name_taken(own: KnownSet, other: KnownSet) -> str:
    registered = ""
    if other.registered > own.registered:
        registered = "; the metadata set has registered that one, so others refuse this one"
    return (
        f"another replica set is called {own.name} as well: {describe_set(other)}{registered}; "
        f"this one is {describe_set(own)} ({_NAMES_ARE_UNIQUE})"
    )


def _two_configurations(taken: KnownSet, said: KnownSet, known: KnownSet) -> str:
    left = said if taken.members == known.members else known
    return (
        f"two configurations of epoch {taken.epoch} of {taken.name} are in use: "
        f"{_roles(taken)} counts, {_roles(left)} does not (start the nodes of {taken.name} with "
        "the same file; raise `epoch` when members or roles change)"
    )


def _roles(known: KnownSet) -> str:
    return ", ".join(f"{name} ({role})" for name, role in known.members)
