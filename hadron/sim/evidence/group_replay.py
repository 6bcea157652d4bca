"""Plays once more what leaders gave to groups' members and what these said to it, and tells where
that broke a rule (PROTOCOL D2). Pure.

Each leader is judged by itself, for a deposed one goes on in good faith until it hears of its
successor; but what was confirmed by one leader holds for all later ones. Members' words count from
when they were said, leaders' deeds from when they were done: so whatever is told here could not
have been right at any order of arrival. What a leader gives after its node has crashed nobody
hears: it may even be records that the disk has lost, and others are at their offsets now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hadron.model.ids import Ballot
from hadron.sim.evidence.history import Assign, Event, GaveBack, Join, Leave, Serve, Settle, Stuck

if TYPE_CHECKING:
    from hadron.sim.evidence.evidence import Evidence

_MS: Final = 1_000_000
_SLACK: Final = _MS
"""Deadlines are seconds as floats, and so are not exact to the nanosecond."""

_Token = tuple[int, int, int]
"""Of a delivery: (epoch, incarnation, number)."""

Key = tuple[str, str, str]
"""Of a group: stream, partition, name."""


@dataclass(slots=True)
class Generation:
    """A group from its creation, or a reset, to the next; an ephemeral one's with one leader.

    Attributes:
        start: the floor that it began with.
        given: how often each offset was given to somebody.
        sent: offsets that a member acknowledged, confirmed or not.
        confirmed: those whose acknowledgement was confirmed, with the highest ballot until then.
        stuck: offsets that could not be made dead letters.
        began: when its first leader served it.
    """

    group_id: int
    start: int
    began: int
    given: dict[int, int] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    confirmed: dict[int, Ballot] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Hold:
    """An offset that a member has."""

    session: int
    since: int
    acknowledged: bool = False


@dataclass(slots=True)
class _Session:
    """A member with one leader."""

    number: int
    member: str
    most: int
    held: dict[int, int] = field(default_factory=dict)
    """Offsets that it must still settle, and since when, the oldest first."""
    given: dict[int, int] = field(default_factory=dict)
    """Every offset that it was given, and the number of the last delivery that brought it."""


@dataclass(slots=True)
class _Driver:
    """One leader's serving of a group."""

    serve: Serve
    generation: Generation
    sessions: dict[int, _Session] = field(default_factory=dict)
    holds: dict[int, _Hold] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    reached: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    """Where each key's line of offsets has got to."""
    is_dead: bool = False
    """Its node has crashed."""

    @property
    def ballot(self) -> Ballot:
        return Ballot(self.serve.epoch, self.serve.incarnation)

    def is_over(self, since: int, now: int) -> bool:
        """Whether the deadline of what was given at `since` may have passed."""
        deadline = self.serve.ack_deadline_ms * _MS
        return bool(deadline) and now + _SLACK >= since + deadline


@dataclass(slots=True)
class Group:
    """A group at a partition, under all its leaders."""

    key: Key
    latest: _Driver
    generations: dict[int, Generation] = field(default_factory=dict)
    joined: dict[str, list[tuple[_Driver, _Session]]] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    sent_by: dict[tuple[str, int], _Token] = field(default_factory=dict)
    """(member, offset), and the token of the delivery that it acknowledged: its client says so
    again by itself where the record comes again, unless the group was made or reset since then."""

    @property
    def is_ephemeral(self) -> bool:
        return self.latest.serve.group_id == 0

    def top(self) -> Ballot:
        return self.latest.ballot


class Replay:
    """Of everything that a history tells of groups.

    Attributes:
        broken: (rule, message).
        groups: by key; only those that leaders were heard of.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.broken: list[tuple[str, str]] = []
        self.groups: dict[Key, Group] = {}
        self._evidence = evidence
        self._drivers: dict[int, _Driver] = {}
        self._of: dict[int, Group] = {}
        self._leaving: set[str] = set()
        self._lines: dict[str, dict[int, str]] = {}
        self._offsets: dict[tuple[str, str], list[int]] = {}
        for _, entry, is_end in _in_order(evidence):
            self._play(entry, is_end=is_end)

    def _play(self, entry: object, *, is_end: bool) -> None:
        if isinstance(entry, Assign):
            self._assign(entry)
        elif isinstance(entry, Settle):
            if is_end:
                self._confirmed(entry)
            else:
                self._said(entry)
        elif isinstance(entry, Serve):
            self._serve(entry)
        elif isinstance(entry, Join):
            driver = self._drivers[entry.driver]
            session = _Session(entry.session, entry.member, entry.max_in_flight)
            driver.sessions[entry.session] = session
            joined = self._of[entry.driver].joined
            joined.setdefault(entry.member, []).append((driver, session))
        elif isinstance(entry, Leave):
            self._leave(self._drivers[entry.driver], entry.session)
        elif isinstance(entry, GaveBack):
            self._gave_back(self._drivers[entry.driver], entry)
        elif isinstance(entry, Stuck):
            self._drivers[entry.driver].generation.stuck.update(range(entry.first, entry.last + 1))
        elif isinstance(entry, Event):
            if entry.kind == "leaving":
                self._leaving.add(entry.subject)
            else:
                self._crashed(entry.subject)

    def _tell(self, rule: str, driver: _Driver, message: str) -> None:
        serve = driver.serve
        self.broken.append(
            (rule, f"group {serve.group} of {serve.stream} at {serve.partition}: {message}")
        )

    # --- leaders --------------------------------------------------------------------------------

    def _serve(self, serve: Serve) -> None:
        key = serve.stream, serve.partition, serve.group
        known = self.groups.get(key)
        generation = known.generations.get(serve.group_id) if known and serve.group_id else None
        if generation is None:
            generation = Generation(serve.group_id, serve.floor, serve.at)
        driver = _Driver(serve, generation, reached=serve.floor)
        if known is None:
            known = self.groups[key] = Group(key, driver)
        known.generations[serve.group_id] = generation
        if driver.ballot >= known.top():
            known.latest = driver
        self._drivers[serve.driver] = driver
        self._of[serve.driver] = known

    def _crashed(self, node: str) -> None:
        for driver in self._drivers.values():
            driver.is_dead = driver.is_dead or driver.serve.node == node

    def _leave(self, driver: _Driver, session: int) -> None:
        """0 is everybody."""
        driver.holds = {
            offset: hold
            for offset, hold in driver.holds.items()
            if session and hold.session != session
        }
        for number in [session] if session else list(driver.sessions):
            if number in driver.sessions:
                driver.sessions[number].held.clear()

    def _gave_back(self, driver: _Driver, note: GaveBack) -> None:
        """Its member has nothing more to do with them, and nobody has tried."""
        session = driver.sessions.get(note.session)
        if session is None:
            return
        for offset in range(note.first, note.last + 1):
            if session.given.get(offset) == note.number:
                session.held.pop(offset, None)
                hold = driver.holds.get(offset)
                if hold is not None and hold.session == note.session:
                    del driver.holds[offset]

    def _assign(self, note: Assign) -> None:
        driver = self._drivers[note.driver]
        if driver.is_dead:
            return
        session, generation, now = driver.sessions[note.session], driver.generation, note.at
        self._check_order(driver, note)
        most = driver.serve.max_attempts
        for offset in range(note.first, note.last + 1):
            self._check_holder(driver, session, offset, now)
            given = generation.given.get(offset, 0)
            self._check_attempt(driver, offset, note.attempt, given, most)
            generation.given[offset] = given + 1
            known = generation.confirmed.get(offset)
            if known is not None and driver.ballot >= known:
                self._tell(
                    "acknowledged_is_over",
                    driver,
                    f"{offset} was given to {session.member} after its acknowledgement had been "
                    "confirmed",
                )
            driver.attempts[offset] = note.attempt
            token = self._of[note.driver].sent_by.get((session.member, offset))
            is_known = token is not None and token > driver.serve.fence
            driver.holds[offset] = _Hold(note.session, now, acknowledged=is_known)
            session.held.pop(offset, None)
            if is_known:
                generation.sent.add(offset)
            else:
                session.held[offset] = now
            session.given[offset] = note.number
        self._check_window(driver, session, now)

    def _check_holder(self, driver: _Driver, session: _Session, offset: int, now: int) -> None:
        hold = driver.holds.get(offset)
        if hold is None or driver.is_over(hold.since, now):
            return
        holder = driver.sessions[hold.session]
        if holder.member not in self._leaving:
            self._tell(
                "one_holder",
                driver,
                f"{offset} was given to {session.member} while {holder.member} held it",
            )

    def _check_attempt(
        self, driver: _Driver, offset: int, attempt: int, given: int, most: int
    ) -> None:
        before = driver.attempts.get(offset)
        if attempt > given + 1 or (before is not None and attempt not in (before, before + 1)):
            self._tell(
                "attempts_are_counted",
                driver,
                f"{offset} was given for the {attempt}. time, after {given} deliveries in all and "
                f"{before or 0} by this leader",
            )
        if 0 < most < attempt and offset not in driver.generation.stuck:
            self._tell(
                "attempts_are_counted",
                driver,
                f"{offset} was given for the {attempt}. time, {most} are allowed",
            )

    def _check_window(self, driver: _Driver, session: _Session, now: int) -> None:
        held = session.held
        while held and driver.is_over(next(iter(held.values())), now):
            del held[next(iter(held))]
        if len(held) > session.most and session.member not in self._leaving:
            self._tell(
                "max_in_flight",
                driver,
                f"{session.member} has {len(held)} records, it takes {session.most}",
            )

    # --- order ----------------------------------------------------------------------------------

    def _check_order(self, driver: _Driver, note: Assign) -> None:
        order = driver.serve.order
        if order == "strict":
            self._check_strict(driver, note)
        elif order == "key":
            for offset in range(note.first, note.last + 1):
                self._check_key(driver, offset)

    def _check_strict(self, driver: _Driver, note: Assign) -> None:
        first = note.first
        early = next(
            (x for x in range(driver.reached, first) if not self._is_settled(driver, x)), None
        )
        if early is not None or note.last > first or first < driver.reached:
            self._tell(
                "strict_order",
                driver,
                f"{first} to {note.last} were given after {driver.reached}, "
                f"{'and' if early is None else f'while {early} was not settled, and'} "
                "one at a time is allowed",
            )
        driver.reached = max(driver.reached, first)

    def _check_key(self, driver: _Driver, offset: int) -> None:
        stream = driver.serve.stream
        key = self._keys(stream).get(offset)
        if key is None:
            return
        line = self._offsets[stream, key]
        index = bisect_left(line, offset)
        reached = driver.lines.get(key, bisect_left(line, driver.serve.floor))
        early = next((x for x in line[reached:index] if not self._is_settled(driver, x)), None)
        if early is not None or index < reached:
            before = line[reached] if early is None else early
            self._tell(
                "order_by_key",
                driver,
                f"{offset} of key {key!r} was given "
                f"{'after' if early is None else 'before'} {before}"
                f"{'' if early is None else ' was settled'}",
            )
        driver.lines[key] = max(reached, index)

    def _keys(self, stream: str) -> dict[int, str]:
        """The keys of a stream's records that have one, by offset."""
        known = self._lines.get(stream)
        if known is None:
            known = self._lines[stream] = {
                offset: _text(record.key)
                for offset, record in sorted(self._evidence.records(stream).items())
                if record.key is not None
            }
            for offset, key in known.items():
                self._offsets.setdefault((stream, key), []).append(offset)
        return known

    def _is_settled(self, driver: _Driver, offset: int) -> bool:
        serve, evidence = driver.serve, self._evidence
        if offset in driver.generation.sent:
            return True
        if serve.group_id == 0 and offset in self._of[serve.driver].sent:
            # What an earlier leader had been told may have been told to this one as well.
            return True
        if evidence.rules.retention and offset < evidence.contents(serve.stream).first_offset:
            return True
        return offset in evidence.dead_letters.get((serve.stream, serve.group), ())

    # --- members --------------------------------------------------------------------------------

    def _concerned(self, settle: Settle) -> tuple[Group, list[tuple[_Driver, _Session]]] | None:
        group = self.groups.get((settle.stream, settle.partition, settle.group))
        if group is None or settle.member not in group.joined:
            return None
        return group, group.joined[settle.member]

    def _said(self, settle: Settle) -> None:
        found = self._concerned(settle)
        if found is None:
            return
        group, joined = found
        for offset in _offsets(settle):
            if settle.how == "ack":
                group.sent.add(offset)
            for driver, session in joined:
                if offset not in session.given:
                    continue
                session.held.pop(offset, None)
                hold = driver.holds.get(offset)
                mine = hold is not None and hold.session == session.number
                if settle.how == "ack":
                    token = (*driver.ballot, session.given[offset])
                    known = group.sent_by.get((settle.member, offset), token)
                    group.sent_by[settle.member, offset] = max(known, token)
                    driver.generation.sent.add(offset)
                    if hold is not None and mine:
                        hold.acknowledged = True
                elif mine:
                    del driver.holds[offset]

    def _confirmed(self, settle: Settle) -> None:
        found = self._concerned(settle)
        if found is None:
            return
        group, joined = found
        latest = group.latest
        for offset in _offsets(settle):
            generations = {
                id(driver.generation): driver.generation
                for driver, session in joined
                if offset in session.given
            }
            if len(generations) != 1:
                # Of which one it counted for nobody can tell.
                continue
            (generation,) = generations.values()
            if generation is not latest.generation:
                if generation.group_id:
                    generation.confirmed.setdefault(offset, group.top())
                continue
            if not group.is_ephemeral or latest.serve.at < settle.began:
                generation.confirmed.setdefault(offset, group.top())
            if not group.is_ephemeral:
                self._check_late(latest, settle, offset)

    def _check_late(self, driver: _Driver, settle: Settle, offset: int) -> None:
        """Whoever holds a record is the only one whose acknowledgement counts."""
        hold = driver.holds.get(offset)
        if hold is None or hold.acknowledged or hold.since >= settle.began:
            return
        holder = driver.sessions[hold.session]
        dropped = self._evidence.contents(driver.serve.stream).first_offset
        if (
            holder.member in (settle.member, *self._leaving)
            or driver.is_over(hold.since, settle.ended)
            or (self._evidence.rules.retention and offset < dropped)
        ):
            return
        self._tell(
            "late_acknowledgement",
            driver,
            f"{settle.member}'s acknowledgement of {offset} counted while {holder.member} held it",
        )


def _in_order(evidence: Evidence) -> Iterator[tuple[int, object, bool]]:
    """(time, entry, whether it is the entry's end), in the order of time."""
    moments: list[tuple[int, object, bool]] = []
    for entry in evidence.history.entries:
        if isinstance(entry, Serve | Join | Assign | Leave | GaveBack | Stuck):
            moments.append((entry.at, entry, False))
        elif isinstance(entry, Settle):
            moments.append((entry.began, entry, False))
            if entry.how == "ack" and entry.outcome == "ok":
                moments.append((entry.ended, entry, True))
        elif isinstance(entry, Event) and entry.kind in ("leaving", "power", "crash"):
            moments.append((entry.at, entry, False))
    moments.sort(key=lambda moment: moment[0])
    return iter(moments)


def _offsets(settle: Settle) -> Iterator[int]:
    for first, last in settle.ranges:
        yield from range(first, last + 1)


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")
