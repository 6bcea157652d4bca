"""When a peer without memory counts again (PROTOCOL B3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hadron.replication.learners import Learners
from hadron.replication.quorum import Quorum
from hadron.state.leadership import Configuration

UUID, STARTED = b"u" * 16, 5
FIVE = ("n1", "n2", "n3", "n4", "n5")


class Fed:
    """A `Feed` whose peer answers when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Callable[[], None]] = []
        self.granted = b""

    def send_notice(self, on_answer: Callable[[], None]) -> None:
        self.asked.append(on_answer)

    def grant_membership(self, uuid: bytes) -> None:
        self.granted = uuid

    def answer(self) -> None:
        while self.asked:
            self.asked.pop(0)()


class Set:
    """n1 leads; those that are named as voters are fed, and n5 is taught."""

    def __init__(self, *voters: str, members: tuple[str, ...] = FIVE, **options: Any) -> None:
        self.quorum = Quorum("n1", members, started_lsn=STARTED, older=options.get("older", ()))
        self.feeds: dict[str, Any] = {name: Fed(name) for name in voters}
        for name in voters:
            self.quorum.admit(name)
        self.learners = Learners(self.quorum, self.feeds, node="n1", started_lsn=STARTED, **options)
        self.five = Fed("n5")
        self.learners.teach(self.five, UUID)  # type: ignore[arg-type]
        self.feeds["n5"] = self.five
        self.learners.ask(self.five)  # type: ignore[arg-type]

    def commit(self, lsn: int, *names: str) -> None:
        for name in names:
            self.quorum.record(name, lsn)
        assert self.quorum.committed == lsn

    def reach(self, lsn: int) -> bytes:
        """n5 has everything up to `lsn`; what it is granted then."""
        self.quorum.record("n5", lsn)
        self.learners.note_persisted("n5", lsn)
        return self.five.granted


def test_it_counts_once_it_has_caught_up_and_enough_were_heard() -> None:
    made = Set("n2", "n3", "n4")
    made.commit(9, "n1", "n2", "n3")
    assert not made.quorum.is_voter("n5")
    assert made.reach(9) == b""
    made.feeds["n2"].answer()
    assert made.five.granted == b"", "n1 and n2 do not meet every majority of five"
    made.feeds["n3"].answer()
    assert made.five.granted == UUID
    assert not made.five.asked, "nobody hears it for itself"


@pytest.mark.parametrize(("committed", "enough"), [(0, STARTED), (9, 9)])
def test_it_has_to_reach_the_watermark_and_the_first_entry(committed: int, enough: int) -> None:
    made = Set("n2", "n3")
    if committed:
        made.commit(committed, "n1", "n2", "n3")
    made.feeds["n2"].answer()
    made.feeds["n3"].answer()
    assert made.reach(enough - 1) == b""
    assert made.reach(enough) == UUID


def test_who_is_taught_as_well_is_not_heard_before_it_counts() -> None:
    made = Set("n2")
    four: Any = Fed("n4")
    made.learners.teach(four, UUID)
    made.feeds["n4"] = four
    made.learners.ask(four)
    four.answer()
    made.feeds["n2"].answer()
    assert made.reach(STARTED) == b"", "n1 and n2 were heard, n4 may have forgotten as much"
    made.quorum.admit("n4")
    assert made.learners.forget("n4")
    made.learners.ask(four)
    four.answer()
    assert made.five.granted == UUID


def test_who_went_away_and_comes_back_starts_over() -> None:
    made = Set("n2", "n3")
    late = [*made.feeds["n2"].asked, *made.feeds["n3"].asked]
    assert "n5" in made.learners
    assert made.learners.forget("n5")
    assert not made.learners.forget("n5")
    late.pop(0)()
    made.learners.teach(made.five, UUID)  # type: ignore[arg-type]
    for answered in late:
        answered()
    assert made.reach(STARTED) == b"", "asked before it came back"
    made.feeds["n2"].answer()
    made.feeds["n3"].answer()
    assert made.five.granted == UUID


def test_an_older_configuration_is_heard_until_the_epoch_has_begun() -> None:
    older = Configuration(1, 1, b"", (("n2", "leader"), ("n3", "replica"), ("n4", "replica")))
    made = Set("n2", "n3", older=[older], begins_epoch=True)
    made.feeds["n2"].answer()
    assert made.reach(STARTED) == b"", "n3 and n4 are a majority of the older one"
    made.feeds["n3"].answer()
    assert made.five.granted == UUID


def test_an_epoch_that_has_begun_asks_for_as_many_as_any_other() -> None:
    """Its members may hold by now what nobody else does; and who left with the older one need not
    be heard any more."""
    older = Configuration(1, 1, b"", (("n2", "leader"), ("n3", "replica"), ("gone", "replica")))
    made = Set("n2", "n3", "n4", older=[older], begins_epoch=True)
    made.commit(STARTED, "n1", "n2", "n3")
    assert made.reach(STARTED) == b""
    made.feeds["n2"].answer()
    assert made.five.granted == b"", "n1 and n2 do not meet every majority of five"
    made.feeds["n4"].answer()
    assert made.five.granted == UUID


def test_nobody_can_have_stored_anything_in_an_epoch_that_begins() -> None:
    assert Set(begins_epoch=True).reach(STARTED) == UUID
    assert Set().reach(STARTED) == b""
