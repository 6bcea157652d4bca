"""What a door holds for all of its callers."""

from __future__ import annotations

import pytest

from hadron.doors.held import Held
from hadron.model.errors import OverloadedError


def test_all_calls_together_hold_no_more_than_they_may() -> None:
    held = Held(100, "calls at a door", "read them")
    large, small = held.share(), held.share()
    large.take(150)
    with pytest.raises(OverloadedError, match=r"150 bytes of calls at a door .* 1 more") as caught:
        small.take(1)
    assert caught.value.hint == "read them"
    large.give(149)
    small.take(99)
    assert held.bytes == 100


def test_who_is_over_holds_nothing_any_more() -> None:
    held = Held(100, "calls", "")
    share = held.share()
    share.take(60)
    share.end()
    share.end()
    share.take(10)
    share.give(20)
    assert held.bytes == 0


def test_as_much_is_left_for_others_and_what_is_small_has_room_anyway() -> None:
    held = Held(100, "answers", "", small_bytes=100)
    held.share().take(40, leaving=40)
    with pytest.raises(OverloadedError):
        held.share().take(40, leaving=40)
    held.share().take(30, leaving=30)
    held.share().take(50, anyway=True)
    held.share().take(80, anyway=True)
    with pytest.raises(OverloadedError):
        held.share().take(1, anyway=True)
    assert held.bytes == 200
