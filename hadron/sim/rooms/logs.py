"""The log alone: ballots, feeds, watermark, trimming and learners, by chance, on members that
crash, are cut off, are promoted and lose their disks, thousands of entries in a second.

What a whole cluster comes to once in thousands of seeds, because it takes a tail, a promotion and a
trimmed log at the same moment, stands here a few messages apart. The reference is what majorities
have really stored: who calls an entry committed that is not, or another one than was, is told, and
so is who answers, shows, applies or trims too early. At the end, once all is healed, all are in
step, everybody was answered, and nothing is kept that may go.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence
from typing import Any, Final

import trio

from hadron.fakes.clocks import SimRandom
from hadron.fakes.scheduling import StuckError, run_seeded
from hadron.fakes.trace import Trace
from hadron.model.errors import HadronError
from hadron.model.ids import Ballot
from hadron.partition.waiters import ALL, LEADER, MAJORITY
from hadron.replication.ballot import Won
from hadron.replication.configurations import in_log, still_needed
from hadron.replication.membership import Membership
from hadron.sim.rooms.log_disks import MACHINE, SET, Disk, NotNextError, Put, PutSoon, Was, puts_of
from hadron.sim.rooms.log_members import Life, tuning_of
from hadron.sim.rooms.log_wires import Wire
from hadron.sim.rooms.played import Played, innermost
from hadron.sim.runs.small_limits import limited
from hadron.storage.bodies import BODY
from hadron.storage.log import LOG, NO_BODY, Log, get_meta

_FAULTS: Final = 10
"""Of one world."""

_KINDS: Final = (
    *("crash", "crash", "crash", "crash", "crash of all", "crash of all"),
    *("cut", "cut", "alone", "alone", "break", "break", "promote", "lose", "lose"),
    *("usurp", "usurp", "usurp"),
)

_HEAL_S: Final = 120.0
"""Simulated, within which all are in step."""

_CLIENTS: Final = 5

_MORE: Final = 25
"""Entries that are committed once all is healed."""

_STEP_BYTES: Final = 9_000
"""By which a log may be longer than it has to be: an entry of many puts, and a step."""

_COUNTED_S: Final = 0.5
"""Simulated: for so long a leader may count what a member has said of a disk that is lost since."""

_BYTES: Final = (
    f"SELECT coalesce(sum(length(l.command) + coalesce(length(b.bytes), 0) + 64), 0)"
    f" FROM {LOG} l LEFT JOIN {BODY} b USING (lsn) WHERE l.lsn > ?"
)

_ODD_BODIES: Final = (
    f"SELECT lsn FROM {LOG} l FULL JOIN {BODY} b USING (lsn) WHERE lsn > ?"
    " AND (l.lsn IS NULL OR (b.lsn IS NULL) <> (l.body_hash = ?))"
)
"""Above a log's anchor."""


class World:
    """Members, clients, and what majorities have stored."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"logs/{seed}")
        self.random = SimRandom(f"logs/{seed}/lives")
        self.applied_at_once = random.Random(f"logs/{seed}/limits").choice((1, 7, 2_048))
        chance = self.chance
        size = chance.choice((3, 3, 3, 5, 4, 2))
        self.names = [f"n{number}" for number in range(1, size + 1)]
        self.keep_bytes = chance.choice((1_000, 4_000, 1 << 20))
        self.tuning = tuning_of(self.keep_bytes, chance.choice((3_000, 20_000, 1 << 20)))
        self.window_bytes = chance.choice((1, 2_000, 1 << 20))
        self.disks = {name: Disk() for name in self.names}
        self.epoch, self.leader = 1, "n1"
        self.files = {name: self._membership(name) for name in self.names}
        self.lives: dict[str, Life] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.wires: list[Wire] = []
        self.lossy = chance.sample(self.names, (size - 1) // 2)
        """Whose disks may be lost."""
        self.lost: dict[str, tuple[Disk, float]] = {}
        """The last one that a member has lost, and until when what it had counts."""
        self.complaints: list[str] = []
        self.truth: dict[int, tuple[bytes, bytes]] = {}
        """Of what is committed: the chain and the command, by lsn."""
        self.truth_lsn = 0
        self.has: dict[int, int] = {}
        """How many puts of each client are committed."""
        self.begins: dict[Ballot, str] = {}
        self.open: dict[int, int] = dict.fromkeys(range(_CLIENTS), 0)
        """Submissions of each client that were not answered."""
        self.done: dict[tuple[int, int], int] = {}
        self.is_quiet = False
        self.is_over = False
        """Nobody asks for anything any more."""
        self.steps = 0
        self._shown: dict[Ballot, list[Was]] = {}

    def complain(self, rule: str, text: str) -> None:
        if len(self.complaints) < 20:
            self.complaints.append(f"{rule}: {text}")

    def _membership(self, name: str) -> Membership:
        members = tuple(
            (each, "leader" if each == self.leader else "replica") for each in self.names
        )
        said = f"{self.epoch} {members}".encode()
        return Membership(
            cluster="room",
            replica_set=SET,
            epoch=self.epoch,
            members=members,
            node=name,
            digest=hashlib.blake2b(said, digest_size=16).digest(),
            addresses={each: f"{each}:1" for each in self.names},
            apply_version=MACHINE.version,
        )

    # --- what members say -----------------------------------------------------------------------

    def wrote(self, life: Life) -> None:
        """A commit, or a job, is on the disk."""
        self.steps += 1
        life.disk.look(self.truth_lsn)
        life.disk.is_lost &= not life.store.identity.current.is_member
        self._check_tables(life)

    def _check_tables(self, life: Life) -> None:
        """What is applied, and what is trimmed, is committed."""
        anchor, follower = life.store.log.anchor, life.follower
        if (said := get_meta(life.disk.db, "committed_lsn")) > self.truth_lsn:
            self.complain("A3 committed is on a majority", f"{life.name} has noted {said}")
        known = self.truth.get(anchor.lsn)
        if anchor.lsn > self.truth_lsn or (known is not None and known[0] != anchor.chain):
            self.complain("A7 only what is committed is trimmed", f"{life.name} at {anchor.lsn}")
        if follower.diverged or life.disk.db.in_transaction:
            return
        applied = get_meta(life.disk.db, "applied_lsn")
        if anchor.lsn > applied:
            self.complain(
                "A7 only what is applied is trimmed", f"{life.name} at {anchor.lsn}, {applied}"
            )
        if applied <= self.truth_lsn and not life.membership.is_leader:
            life.disk.is_ahead = False
        elif not life.disk.is_ahead and applied > self.truth_lsn:
            self.complain("A1 replicas apply what is committed", f"{life.name} at {applied}")
        if follower.stored_applied_lsn > applied and not follower.diverged:
            self.complain("what is applied is stored", f"{life.name} at {applied}")

    def committed(self, life: Life, lsn: int) -> None:
        """A member calls everything up to `lsn` committed."""
        self.steps += 1
        controller = life.controller
        if lsn > self.truth_lsn:
            if controller is None:
                self.complain(
                    "A3 committed is on a majority",
                    f"{life.name} calls {lsn} committed, and {self.truth_lsn} is",
                )
                return
            self._reach(life, lsn)
        known = self.truth.get(lsn)
        own = life.store.log.position_at(lsn)
        if known is not None and own is not None and own.chain != known[0]:
            self.complain(
                "C what is committed stays", f"{life.name} has another entry {lsn} than committed"
            )

    def _reach(self, life: Life, lsn: int) -> None:
        rows: Any = life.disk.db.execute(
            f"SELECT lsn, chain, command FROM {LOG} WHERE lsn > ? AND lsn <= ? ORDER BY lsn",
            (self.truth_lsn, lsn),
        ).fetchall()
        needed = len(self.names) // 2 + 1
        for number, chain, command in rows:
            holders = [name for name in self.names if self._has_stored(name, number, chain)]
            if len(holders) < needed:
                self.complain(
                    "A3 committed is on a majority",
                    f"{life.name} calls {lsn} committed, and {number} is on {holders}",
                )
            self.truth[number] = chain, command
            for client, _, _ in puts_of([(number, command)]):
                self.has[client] = self.has.get(client, 0) + 1
        if [row[0] for row in rows] != list(range(self.truth_lsn + 1, lsn + 1)):
            self.complain("A3 what is committed has no holes", f"{life.name} up to {lsn}")
        self.truth_lsn = lsn

    def _has_stored(self, name: str, lsn: int, chain: bytes) -> bool:
        if self.disks[name].holds(lsn, chain):
            return True
        disk, until_s = self.lost.get(name, (None, 0.0))
        return disk is not None and trio.current_time() < until_s and disk.holds(lsn, chain)

    def begun(self, life: Life, won: Won) -> None:
        """A ballot has its first entry on a majority."""
        if won.ballot in self.begins:
            self.complain("B1 a ballot is used once", f"{won.ballot} by {life.name}")
        self.begins[won.ballot] = life.name
        self._compare(life)

    def _compare(self, life: Life) -> None:
        """What a member has of what is committed is that."""
        for lsn, chain in life.disk.db.execute(f"SELECT lsn, chain FROM {LOG}"):
            if lsn in self.truth and self.truth[lsn][0] != chain:
                self.complain("C what is committed stays", f"{life.name} has another {lsn}")

    def promised(self, life: Life, ballot: Ballot) -> None:
        if ballot < life.disk.promised:
            self.complain("B1 lower ballots are refused", f"{life.name} promises {ballot}")
        life.disk.promised = ballot

    def shown(self, life: Life, seen: Sequence[Was]) -> None:
        """What is told to those who watch streams, of the leader's."""
        assert life.controller is not None
        before = self._shown.setdefault(life.controller.ballot, [])
        for event in seen:
            if event.lsn > self.truth_lsn:
                self.complain("A2 what is shown is committed", f"{life.name}: {event}")
            if event in before or (before and event.lsn < before[-1].lsn):
                self.complain("A2 what is shown is shown once, in order", f"{life.name}: {event}")
            before.append(event)

    # --- clients --------------------------------------------------------------------------------

    async def client(self, client: int) -> None:
        """Put one number after the other, and each again until it is answered."""
        chance, number = self.chance, 1
        kind = PutSoon if client == 1 else Put
        while True:
            await trio.sleep(chance.uniform(0.0, 0.1))
            life = chance.choice([*self.lives.values()] or [None])
            if life is None or not life.leads or life.controller is None or self.is_over:
                continue
            if chance.random() < 0.2:
                await self._ask(life, client)
                continue
            acks = chance.choice((MAJORITY, LEADER, ALL))
            wanted = number if chance.random() < 0.9 else chance.randint(1, number + 1)
            for each in range(wanted, wanted + chance.choice((1, 1, 3, 8))):
                answered = trio.Event()
                self._submit(life, kind(client, each), acks, answered)
            with trio.move_on_after(chance.uniform(0.01, 3.0)):
                await answered.wait()
            while (client, number) in self.done:
                number += 1

    async def _ask(self, life: Life, client: int) -> None:
        """What a leader says now is committed, and is all that was when it was asked."""
        controller, least = life.controller, self.has.get(client, 0)
        assert controller is not None
        try:
            with trio.fail_after(2.0):
                await controller.confirm_leadership(1.0)
                row: Any = await controller.query(
                    lambda db: db.execute(
                        "SELECT count(*) FROM hadron_put WHERE client = ?", (client,)
                    ).fetchone()
                )
        except (HadronError, trio.TooSlowError):
            return
        if not least <= row[0] <= self.has.get(client, 0):
            self.complain(
                "A2 a question is answered by what is committed now",
                f"{life.name} counts {row[0]} of {client}; {least} were committed when it was "
                f"asked, {self.has.get(client, 0)} are now",
            )

    def _submit(self, life: Life, put: Put, acks: int, answered: trio.Event) -> None:
        controller = life.controller
        assert controller is not None

        def done(result: Any, error: HadronError | None) -> None:
            self.open[put.client] -= 1
            if answered.is_set():
                self.complain("who asks is answered once", f"{put} by {life.name}")
            answered.set()
            self._answered(life, put, acks, result, error)

        self.open[put.client] += 1
        body = self.random.token_bytes(self.chance.choice((0, 50, 50, 900)))
        controller.submit(put, body, acks=acks, done=done)

    def _answered(
        self, life: Life, put: Put, acks: int, result: Any, error: HadronError | None
    ) -> None:
        if isinstance(error, NotNextError):
            if error.has > self.has.get(put.client, 0):
                self.complain("A2 a refusal is of what is committed", f"{life.name}: {error}")
        elif error is None and acks == LEADER:
            if result > self.truth_lsn and result not in life.disk.chains:
                self.complain("C acks=leader is on its disk", f"{life.name}: {put} at {result}")
        elif error is None:
            self._told_of(life, put, result)
            if acks == ALL:
                chain = self.truth[result][0] if result in self.truth else b""
                for name in self.names:
                    if name not in self.lossy and not self.disks[name].holds(result, chain):
                        self.complain("C acks=all is on every disk", f"{put}: {name} lacks it")

    def _told_of(self, life: Life, put: Put, lsn: int) -> None:
        chain = self.truth.get(lsn)
        found = puts_of([(lsn, chain[1])]) if chain is not None else []
        if (put.client, put.number, lsn) not in found:
            self.complain("A2 told once it is committed", f"{life.name}: {put} at {lsn}")
        self.done[put.client, put.number] = lsn

    # --- what happens to members ----------------------------------------------------------------

    def dial(self, source: str, target: str) -> Wire | None:
        life = self.lives.get(target)
        if life is None or source not in self.lives:
            return None
        if (source, target) in self.cuts or (target, source) in self.cuts:
            return None
        wire = Wire(source, target, life.handlers, self.random, life.service.require_member)
        wire.slow_s *= self.chance.choice((1, 1, 1, 20))
        self.wires = [each for each in self.wires if not each.is_closed]
        self.wires.append(wire)
        return wire

    async def live(self, name: str) -> None:
        """A member, from one start to the next, for ever."""
        while True:
            life = Life(self, name, self.disks[name], self.files[name])
            life.store.writer.slow_s *= self.chance.choice((1, 1, 10))
            self.lives[name] = life
            try:
                await life.run()
            finally:
                del self.lives[name]
                for wire in self.wires:
                    if name in (wire.source, wire.target):
                        wire.close()
            self.disks[name].crash()
            if life.copy is not None:
                self.disks[name].db = life.copy
                self.disks[name].look(self.truth_lsn)
            away_s = self.chance.choice((0.1, 0.5, 3.0))
            await trio.sleep(0.01 if self.is_quiet else self.chance.uniform(0.0, away_s))

    def _crash(self, name: str) -> None:
        if name in self.lives:
            self.lives[name].ended.set()

    async def _fault(self) -> None:
        name, other = self.chance.sample(self.names, 2)
        kind = self.chance.choice(_KINDS)
        if kind == "crash":
            self._crash(name)
        elif kind == "crash of all":
            for each in self.names:
                self._crash(each)
        elif kind == "break":
            self._break({(name, other)})
        elif kind == "cut":
            await self._cut({(name, other)})
        elif kind == "alone":
            await self._cut({(name, each) for each in self.names if each != name})
        elif not self.truth_lsn:
            # A replica set that is not founded cannot have another epoch, or lose a disk.
            return
        elif kind == "promote":
            self._promote(name)
        elif kind == "usurp":
            await self._usurp()
        elif self.lossy:
            self._lose(self.chance.choice(self.lossy))

    def _break(self, pairs: set[tuple[str, str]]) -> None:
        for wire in self.wires:
            if (wire.source, wire.target) in pairs or (wire.target, wire.source) in pairs:
                wire.close()

    async def _cut(self, pairs: set[tuple[str, str]]) -> None:
        self.cuts |= pairs
        self._break(pairs)
        await trio.sleep(self.chance.uniform(0.0, 2.0))
        self.cuts -= pairs

    async def _usurp(self) -> None:
        """A leader that is alone, or has one more member, goes on; another one leads the others,
        who is told of it later, or never."""
        old = self.leader
        others = [each for each in self.names if each != old]
        spared = self.chance.choice((None, *others))
        pairs = {(old, each) for each in others if each != spared}
        self.cuts |= pairs
        self._break(pairs)
        await trio.sleep(self.chance.uniform(0.0, 0.4))
        self._promote(self.chance.choice(others), old)
        await trio.sleep(self.chance.uniform(0.0, 1.5))
        if self.chance.random() < 0.5:
            self.files[old] = self._membership(old)
            self._crash(old)
        self.cuts -= pairs

    def _promote(self, leader: str, spared: str = "") -> None:
        """Another one leads; some hear of it now, the others by and by."""
        self.epoch, self.leader = self.epoch + 1, leader
        for name in self.names:
            if name != spared and (name == leader or self.chance.random() < 0.7):
                self.files[name] = self._membership(name)
                self._crash(name)

    def _lose(self, name: str) -> None:
        """A disk of a minority: while others wait for tables, or to be taught, theirs are lost,
        too."""
        others = [self.lives.get(each) for each in self.names if each != name]
        if any(
            life is None
            or life.follower.diverged
            or life.is_waiting
            or not life.store.identity.current.is_member
            for life in others
        ):
            return
        self._crash(name)
        self.lost[name] = self.disks[name], trio.current_time() + _COUNTED_S
        self.disks[name] = Disk()
        self.disks[name].is_lost = True

    # --- a run ----------------------------------------------------------------------------------

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in self.names:
                nursery.start_soon(self.live, name)
            for client in range(_CLIENTS):
                nursery.start_soon(self.client, client)
            for _ in range(_FAULTS):
                await trio.sleep(self.chance.uniform(0.0, 0.6))
                await self._fault()
                if self.complaints:
                    nursery.cancel_scope.cancel()
                    return
            await self._heal()
            nursery.cancel_scope.cancel()

    async def _heal(self) -> None:
        self.is_quiet = True
        self.cuts.clear()
        for name in self.names:
            self.files[name] = self._membership(name)
            self._crash(name)
        before = self.truth_lsn
        why = f"nothing is committed after {before}"
        with trio.move_on_after(_HEAL_S):
            while self.truth_lsn < before + _MORE:  # noqa: ASYNC110
                await trio.sleep(0.05)
            self.is_over = True
            while why := self._out_of_step():  # noqa: ASYNC110
                await trio.sleep(0.05)
        if why:
            self.complain("it does not heal", why)
        else:
            self._judge()

    def _out_of_step(self) -> str:
        """What is not yet as it has to be once nobody asks for anything; "" for nothing."""
        leader = self.lives.get(self.leader)
        if leader is None or not leader.leads or leader.controller is None:
            return f"{self.leader} does not lead"
        head = leader.store.log.head
        for name in self.names:
            life = self.lives.get(name)
            if life is None or not life.store.identity.current.is_member:
                return f"{name} does not remember"
            if not leader.controller.quorum.is_voter(name):
                return f"{name} does not count"
            follower = life.follower
            if follower.diverged or life.is_waiting:
                return f"{name} has not got its copy"
            if (follower.head, follower.committed_lsn) != (head, head.lsn):
                return f"{name} is at {follower.head.lsn}, {follower.committed_lsn}, not {head.lsn}"
            if (
                follower.stored_applied_lsn != head.lsn
                or life.store.writer.connection.in_transaction
            ):
                return f"{name} has applied {follower.stored_applied_lsn} of {head.lsn}"
            if kept := self._kept(life):
                # The others hear of it with a leader's next word.
                if name != self.leader and name in leader.controller.feeding.feeds:
                    leader.controller.feeding.feeds[name].send_notice()
                return f"{name} keeps {kept} bytes of its log, and is to keep {self.keep_bytes}"
        if any(self.open.values()):
            return f"answers are owed: {self.open}"
        left = leader.controller._gate._bytes, leader.controller._uncommitted_bytes
        return f"bytes are still counted: {left}" if any(left) else ""

    def _kept(self, life: Life) -> int:
        """How much of a log is kept that may go; 0 for none. It goes in steps, and with the next
        word of a leader."""
        (size,) = life.disk.db.execute(_BYTES, (life.store.log.anchor.lsn,)).fetchone() or (0,)
        return size if size > self.keep_bytes + _STEP_BYTES else 0

    def _judge(self) -> None:
        """Once all are in step."""
        puts = sorted(puts_of([(lsn, command) for lsn, (_, command) in self.truth.items()]))
        for one, other in itertools.pairwise(puts):
            if one[0] == other[0] and (one[1] + 1 != other[1] or one[2] > other[2]):
                self.complain("D1 once, and in order", f"{one} and then {other}")
        self._check_shown(puts)
        for name, life in self.lives.items():
            db, follower = life.disk.db, life.follower
            found: Any = db.execute("SELECT client, number, lsn FROM hadron_put ORDER BY 1, 2")
            if (rows := found.fetchall()) != puts:
                odd = sorted({*rows} ^ {*puts})[:3]
                self.complain("tables are what the log makes of them", f"{name}: {odd}")
            self._compare(life)
            odd_bodies: Any = db.execute(_ODD_BODIES, (life.store.log.anchor.lsn, NO_BODY))
            for lsn in odd_bodies.fetchall():
                self.complain("an entry has its own body", f"{name}: {lsn}")
            fresh = Log(db)
            for what, kept, read in (
                ("the log's end", life.store.log.head, fresh.head),
                ("where it begins", life.store.log.anchor, fresh.anchor),
                ("its latest stamp", life.store.log.last_ms, fresh.last_ms),
                ("what is applied", follower.stored_applied_lsn, get_meta(db, "applied_lsn")),
                (
                    "configurations",
                    [each.epoch for each in follower.configurations],
                    [
                        each.epoch
                        for each in still_needed(
                            in_log(db, get_meta(db, "applied_lsn"), fresh.head.lsn),
                            follower.committed_lsn,
                        )
                    ],
                ),
            ):
                if kept != read:
                    self.complain("what is remembered is on the disk", f"{name}: {what}")

    def _check_shown(self, puts: Sequence[tuple[int, int, int]]) -> None:
        """Whoever leads in the end has shown all that came under its ballot."""
        controller = self.lives[self.leader].controller
        assert controller is not None
        shown = {(event.client, event.number) for event in self._shown.get(controller.ballot, ())}
        for client, number, lsn in puts:
            if lsn > controller.feeding.started_lsn and (client, number) not in shown:
                self.complain("A2 what is committed is shown", f"{client}, {number} at {lsn}")

    def trims(self, life: Life, lsn: int) -> None:
        """A leader lets the log go up to `lsn`: enough follows it, and all members have it, or so
        much follows that nobody waits for them."""
        if lsn > self.truth_lsn:
            self.complain("A7 only what is committed is trimmed", f"{life.name} up to {lsn}")
        (size,) = life.disk.db.execute(_BYTES, (lsn,)).fetchone() or (0,)
        own = life.store.log.position_at(lsn)
        lacking = [
            name
            for name, disk in self.disks.items()
            # Of a disk that was lost the leader may not have heard.
            if own is not None and not disk.is_lost and not disk.holds(lsn, own.chain)
        ]
        limit = self.tuning.log_max_lag_bytes if lacking else self.keep_bytes
        if size < limit:
            self.complain(
                "A7 what a member lacks is kept",
                f"{life.name} lets the log go up to {lsn}; {lacking} lack it, {size} bytes follow, "
                f"the limit is {limit}",
            )
        life.trimmer.allow(lsn)


def play(seed: int) -> Played:
    """One world."""
    found = Played()
    world = World(seed)
    trace = Trace()
    try:
        with limited({"applied at once": world.applied_at_once}):
            run_seeded(seed, lambda _time: world.run(), trace)
    except Exception as error:  # a bug may break anything
        said = str(error) if isinstance(error, StuckError) else innermost(error)
        world.complain("raised", said[:300])
    found.complaints, found.steps = world.complaints, world.steps
    found.digest = trace.hexdigest()
    return found
