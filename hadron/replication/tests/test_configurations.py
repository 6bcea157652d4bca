"""Changes of configuration, in a model small enough to try everything that can happen.

The model has nodes with a promise, a log and a watermark, and an adversary who decides who is
heard, what is replicated and when somebody else begins. What is decided (`stand`, `still_needed`,
`what_is_missing`, `Quorum`) is the product's. The property: a log that may lead holds everything
that was ever committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import pytest

from hadron.replication import configurations
from hadron.replication.configurations import still_needed, what_is_missing
from hadron.replication.membership import Membership
from hadron.replication.quorum import Quorum
from hadron.replication.standing import stand
from hadron.state.features import MACHINE
from hadron.state.leadership import Configuration

Ballot = tuple[int, int]
Log = tuple[tuple[str, Ballot], ...]
"""Entries: "L" begins a ballot, "R" is a record; the lsn is the index from 1."""


@dataclass(frozen=True)
class Members:
    """An epoch's configuration."""

    leader: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Disk:
    promise: Ballot = (0, 0)
    log: Log = ()
    committed: int = 0
    is_member: bool = False


@dataclass(frozen=True)
class Lead:
    """One leadership. `acked` is what each member has said it holds."""

    ballot: Ballot
    started_lsn: int
    older: tuple[Configuration, ...]
    acked: tuple[tuple[str, int], ...]


class LostError(Exception):
    """A log without what was committed may lead, or commits something else."""


@dataclass(frozen=True)
class World:
    plan: tuple[Members, ...]
    """By epoch, from 1."""
    disks: tuple[tuple[str, Disk], ...]
    leads: tuple[tuple[int, Lead], ...] = ()
    committed: Log = ()

    def disk(self, name: str) -> Disk:
        return dict(self.disks)[name]

    def with_disks(self, changed: dict[str, Disk]) -> World:
        return replace(self, disks=tuple(sorted({**dict(self.disks), **changed}.items())))

    def lead(self, epoch: int, heard: Sequence[str]) -> World | None:
        """The epoch's leader gathers promises from `heard` and begins; None when it may not."""
        members = self.plan[epoch - 1]
        everyone = {name: self.disk(name) for name in (members.leader, *heard)}
        ballot = (epoch, 1 + max(disk.promise[1] for disk in everyone.values()))
        if any(disk.promise > ballot for disk in everyone.values()):
            return None
        own = everyone[members.leader]
        known = [each for disk in everyone.values() if disk.is_member for each in in_log(disk.log)]
        committed = max(disk.committed for disk in everyone.values())
        found = stand(
            membership(members, epoch),
            own_is_member=own.is_member,
            own_log_is_empty=not own.log,
            reports={name: (everyone[name].is_member, not everyone[name].log) for name in heard},
            configurations=still_needed(known, committed),
        )
        if found.missing or found.founding:
            return None
        remembering = {name for name, disk in everyone.items() if disk.is_member}
        logs = [everyone[name].log for name in remembering]
        best = max(logs, key=lambda log: (log[-1][1] if log else (0, 0), len(log)))
        needed = configurations.still_needed(in_log(best), committed)
        if any(each.epoch > epoch for each in needed):
            return None
        if what_is_missing(needed, everyone.keys(), remembering):
            return None
        if best[: len(self.committed)] != self.committed:
            raise LostError(f"{self.committed} was committed, {best} leads in epoch {epoch}")
        older = tuple(each for each in needed if each.epoch != epoch)
        changed = {name: replace(disk, promise=ballot) for name, disk in everyone.items()}
        changed[members.leader] = Disk(ballot, (*best, ("L", ballot)), own.committed, True)
        lead = Lead(ballot, len(best) + 1, older, ())
        leads = {**dict(self.leads), epoch: lead}
        world = replace(self, leads=tuple(sorted(leads.items(), key=lambda item: item[0])))
        return world.with_disks(changed)

    def replicate(self, epoch: int, name: str) -> World | None:
        """The leader's whole log reaches a member, whose answer moves the watermark."""
        members, lead = self.plan[epoch - 1], dict(self.leads)[epoch]
        leader, disk = self.disk(members.leader), self.disk(name)
        if leader.promise != lead.ballot or disk.promise > lead.ballot:
            return None
        told = Disk(lead.ballot, leader.log, max(disk.committed, leader.committed), True)
        if told.log[: disk.committed] != disk.log[: disk.committed]:
            raise LostError(f"{name} has {disk.log[: disk.committed]}, it is told {told.log}")
        acked = {**dict(lead.acked), name: len(leader.log)}
        lead = replace(lead, acked=tuple(sorted(acked.items())))
        leads = {**dict(self.leads), epoch: lead}
        world = replace(self, leads=tuple(sorted(leads.items(), key=lambda item: item[0])))
        return world.with_disks({name: told})._advance(epoch, lead)

    def _advance(self, epoch: int, lead: Lead) -> World:
        members = self.plan[epoch - 1]
        leader = self.disk(members.leader)
        quorum = Quorum(
            members.leader, members.names, started_lsn=lead.started_lsn, older=lead.older
        )
        quorum.record(members.leader, len(leader.log))
        for name, lsn in lead.acked:
            quorum.admit(name)
            quorum.record(name, lsn)
        committed = max(leader.committed, quorum.committed)
        log = leader.log[:committed]
        shorter, longer = sorted((log, self.committed), key=len)
        if longer[: len(shorter)] != shorter:
            raise LostError(f"{self.committed} was committed, and now {log}")
        world = replace(self, committed=longer)
        return world.with_disks({members.leader: replace(leader, committed=committed)})

    def append(self, epoch: int) -> World | None:
        """A record, once the ballot serves."""
        members, lead = self.plan[epoch - 1], dict(self.leads)[epoch]
        leader = self.disk(members.leader)
        if leader.promise != lead.ballot or leader.committed < lead.started_lsn:
            return None
        if leader.log[-1][0] == "R":
            return None
        longer = replace(leader, log=(*leader.log, ("R", lead.ballot)))
        return self.with_disks({members.leader: longer})

    def steps(self, *, leads_each: int) -> Iterator[World]:
        """Everything that may happen next."""
        found: list[World | None] = []
        leading = dict(self.leads)
        for epoch, members in enumerate(self.plan, start=1):
            if epoch not in leading or leading[epoch].ballot[1] < leads_each + epoch - 1:
                peers = [name for name in members.names if name != members.leader]
                found += [self.lead(epoch, heard) for heard in subsets(peers)]
            if epoch in leading:
                found.append(self.append(epoch))
                found += [
                    self.replicate(epoch, name) for name in members.names if name != members.leader
                ]
        return (world for world in found if world is not None)


def subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def in_log(log: Log) -> list[Configuration]:
    """The configurations that a log holds; `PLAN` says whose they are."""
    found: dict[int, Configuration] = {}
    for lsn, (kind, (epoch, _)) in enumerate(log, start=1):
        if kind == "L" and epoch not in found:
            names = PLAN[epoch - 1].names
            found[epoch] = Configuration(epoch, lsn, b"", tuple((name, "") for name in names))
    return list(found.values())


PLAN: tuple[Members, ...] = ()


def membership(members: Members, epoch: int) -> Membership:
    return Membership(
        cluster="",
        replica_set="",
        epoch=epoch,
        node=members.leader,
        digest=b"",
        apply_version=MACHINE.version,
        addresses={},
        members=tuple(
            (name, "leader" if name == members.leader else "replica") for name in members.names
        ),
    )


def begin(plan: Sequence[Members], stored: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> World:
    """Epoch 1 has led and committed a record, which stands on `stored`; others lag behind."""
    monkeypatch.setattr(f"{__name__}.PLAN", tuple(plan))
    first = plan[0]
    log: Log = (("L", (1, 1)), ("R", (1, 1)))
    names = sorted({name for members in plan for name in members.names})
    disks = {name: Disk() for name in names}
    for name in first.names:
        disks[name] = Disk((1, 1), log[:1], 1, True)
    for name in stored:
        disks[name] = Disk((1, 1), log, 1, True)
    disks[first.leader] = Disk((1, 1), log, 2, True)
    return World(tuple(plan), tuple(sorted(disks.items())), committed=log)


def explore(world: World, *, leads_each: int = 1, most: int = 1_000_000) -> int:
    """Everything that can happen from here; returns how many different worlds there are."""
    seen, waiting = {world}, [world]
    while waiting:
        for after in waiting.pop().steps(leads_each=leads_each):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
        assert len(seen) <= most
    return len(seen)


def weak_rule(known: Iterable[Configuration], _committed_lsn: int) -> list[Configuration]:
    """B5 to the letter: the latest configuration of the chosen log, and nothing else."""
    return sorted(known, key=lambda each: each.lsn)[-1:]


FIRST = Members("a", ("a", "b", "c"))


def second_configurations() -> Iterator[Members]:
    for size in (1, 2, 3):
        for names in combinations("abcd", size):
            for leader in names:
                yield Members(leader, names)


@pytest.mark.long
@pytest.mark.parametrize("stored", ["ab", "ac"])
def test_everything_that_can_happen_in_one_change(
    stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any next configuration, begun twice, while the first one goes on and begins again."""
    worlds = sum(
        explore(begin((FIRST, second), stored, monkeypatch), leads_each=2)
        for second in second_configurations()
    )
    assert worlds > 5_000


def test_everything_that_can_happen_in_two_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [
        (FIRST, Members("b", ("a", "b", "d")), Members("d", ("a", "d"))),
        (FIRST, Members("d", ("a", "c", "d")), Members("c", ("b", "c"))),
        (FIRST, Members("c", ("b", "c")), Members("d", ("b", "c", "d"))),
    ]
    assert sum(explore(begin(plan, "ab", monkeypatch)) for plan in plans) > 5_000


def play_history(world: World) -> World | None:
    """The one of `configurations.py`, in the smallest world that has it: b hears of nothing."""
    steps: list[Callable[[World], World | None]] = [
        # Epoch 2 dies with its first entry on a and d: not a majority of epoch 1.
        lambda world: world.lead(2, ("b", "d")),
        lambda world: world.replicate(2, "d"),
        # Epoch 3 finds it there, and commits a record on d and e.
        lambda world: world.lead(3, ("a",)),
        lambda world: world.replicate(3, "a"),
        lambda world: world.append(3),
        lambda world: world.replicate(3, "e"),
        # Epoch 4 hears nobody who knows.
        lambda world: world.lead(4, ("c",)),
    ]
    now: World | None = world
    for step in steps:
        if now is None:
            return None
        now = step(now)
    return now


HISTORY = (
    FIRST,
    Members("a", ("a", "b", "d")),
    Members("d", ("a", "d", "e")),
    Members("b", ("b", "c")),
)


def test_the_latest_configuration_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What breaks without the rule, and that the model finds it."""
    world = begin(HISTORY, "abc", monkeypatch)
    monkeypatch.setattr(configurations, "still_needed", weak_rule)
    monkeypatch.setattr(f"{__name__}.still_needed", weak_rule)
    with pytest.raises(LostError, match="was committed"):
        play_history(world)


def test_the_rule_stops_that_history(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_history(begin(HISTORY, "abc", monkeypatch)) is None


@pytest.mark.parametrize("seed", range(40))
def test_long_walks_through_five_configurations_of_six_nodes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    plan = [FIRST]
    for _ in range(4):
        # Most of the members before stay, or nothing could begin.
        names = sorted({*chance.sample(plan[-1].names, 2), *chance.sample("abcdef", 2)})
        plan.append(Members(chance.choice(names), tuple(names)))
    world = begin(plan, "ab", monkeypatch)
    for _ in range(150):
        after = list(world.steps(leads_each=3))
        if not after:
            break
        world = chance.choice(after)
