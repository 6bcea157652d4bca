"""The broker of calls, one history at a time; `hadron/sim/rooms/endpoints.py` plays many."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from hadron.endpoints.endpoint import MAX_ATTEMPTS, MAX_UNTOLD_BYTES, MAX_WAITING_BYTES
from hadron.endpoints.machine import MAX_CALLS
from hadron.endpoints.port import Opening, Value
from hadron.endpoints.tests.support import KEY, Caller, Room
from hadron.model.errors import (
    CallFailedError,
    CallUnknownError,
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    NoServerError,
    NotFoundError,
    OverloadedError,
    RequestError,
)
from hadron.model.limits import CALL_VALUE_BYTES, CALL_WINDOW_BYTES, MAX_CALL_MESSAGE_BYTES
from hadron.model.services import SINGLE, STREAM

GONE = ConnectionLostError("gone")


def test_a_call_goes_to_a_server_and_its_answer_back() -> None:
    room = Room()
    serving = room.serve(2)
    room.caller.call(3, b"one")
    room.caller.call(5, b"two", now_s=1.5)
    assert serving.told == [(1, "open", b"one", 1, 10.0), (2, "open", b"two", 1, 10.0)]
    room.answer(serving, 2, b"2")
    room.answer(serving, 1, b"1")
    assert room.caller.told == [(5, b"2", True, {}), (3, b"1", True, {})]
    assert room.endpoint.in_flight == 0
    assert serving.it.latencies.percentiles_us() == (500_000, 500_000)
    assert room.endpoint.latencies.answered == 2


def test_an_answer_that_comes_twice_or_late_is_heard_by_nobody() -> None:
    room = Room()
    serving = room.serve()
    room.caller.call(1)
    room.answer(serving, 1)
    room.answer(serving, 1, b"again")
    assert room.caller.told == [(1, b"a", True, {})]
    room.caller.call(2, timeout_s=1.0)
    room.broker.tick(2.5)
    assert isinstance(room.caller.error_of(2), DeadlineExceededError)
    assert serving.told[-1] == (2, "cancel")
    room.answer(serving, 2, b"late")
    assert len(room.caller.told) == 2
    assert serving.it.is_free
    with pytest.raises(RequestError, match="speaks of call 3, which it was never given"):
        room.answer(serving, 3)


def test_who_is_cancelled_keeps_the_slot_until_the_server_has_ended() -> None:
    room = Room()
    serving = room.serve()
    room.caller.call(1)
    room.broker.caller_cancels(room.caller.it, 1)
    assert serving.told[-1] == (1, "cancel")
    room.caller.call(2)
    assert room.endpoint.waiting
    room.broker.server_end(serving.it, 1, {}, 3.0)
    assert serving.told[-1] == (2, "open", b"v", 1, 8.0)
    assert not room.caller.told


def test_a_lost_server_is_told_of_once_and_nothing_is_run_twice() -> None:
    room = Room()
    first, second = room.serve(name="one"), room.serve(name="two")
    room.caller.call(1)
    lost, other = (first, second) if first.told else (second, first)
    room.broker.detach_server(lost.it, GONE, 2.0)
    room.broker.detach_server(lost.it, GONE, 2.0)
    error = room.caller.error_of(1)
    assert isinstance(error, CallUnknownError)
    assert "was lost while it ran the call: gone" in error.message
    assert not error.retryable
    assert not other.told


def test_an_idempotent_call_goes_elsewhere_within_its_deadline() -> None:
    room = Room(idempotent=True)
    servers = [room.serve(name=f"s{number}") for number in range(MAX_ATTEMPTS + 1)]
    room.caller.call(1, timeout_s=30.0)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        (serving,) = [each for each in servers if each.told and not each.it.is_gone]
        assert serving.told == [(1, "open", b"v", attempt, 31.0 - attempt)]
        assert not room.caller.told
        room.broker.detach_server(serving.it, GONE, attempt + 1.0)
    # What kills each of them does not kill all.
    error = room.caller.error_of(1)
    assert isinstance(error, CallUnknownError)
    assert f"it was run {MAX_ATTEMPTS} times" in error.hint
    assert error.retryable
    assert room.endpoint.kept_bytes == 0


def test_who_was_lost_with_a_call_may_have_run_it_though_nobody_is_left() -> None:
    room = Room(idempotent=True)
    first = room.serve(name="one")
    room.caller.call(1)
    room.broker.detach_server(first.it, GONE, 2.0)
    error = room.caller.error_of(1)
    assert isinstance(error, CallUnknownError)
    assert "nobody serves" in error.message
    assert error.retryable
    # The next one has not been given to anybody.
    room.caller.call(2)
    assert isinstance(room.caller.error_of(2), NoServerError)


def test_what_a_server_has_not_begun_goes_elsewhere() -> None:
    room = Room()
    first = room.serve(name="one")
    room.caller.call(1)
    second = room.serve(name="two")
    room.broker.server_refuses(first.it, 1, 2.0)
    assert second.told == [(1, "open", b"v", 1, 9.0)]
    room.broker.server_refuses(second.it, 1, 3.0)
    assert isinstance(room.caller.error_of(1), NoServerError)


def test_hedging_takes_the_first_answer() -> None:
    room = Room(idempotent=True, hedge_after_ms=500)
    first = room.serve(name="one")
    room.caller.call(1)
    second = room.serve(name="two")
    room.broker.tick(1.4)
    assert not second.told
    assert room.broker.next_s == pytest.approx(1.5)
    room.broker.tick(1.5)
    assert second.told == [(1, "open", b"v", 2, 9.5)]
    room.answer(second, 1, b"quick")
    assert room.caller.told == [(1, b"quick", True, {})]
    assert first.told[-1] == (1, "cancel")
    assert room.endpoint.in_flight == 1
    room.answer(first, 1, b"slow")
    assert len(room.caller.told) == 1
    assert room.endpoint.in_flight == 0


def test_what_is_no_longer_idempotent_is_given_to_nobody_else() -> None:
    """As its endpoint is declared by now, not as it was when the call was given to a server."""
    room = Room(idempotent=True, hedge_after_ms=500)
    first = room.serve(name="one")
    room.caller.call(1)
    second = room.serve(name="two")
    room.broker.declare({KEY: msgspec.structs.replace(room.spec, idempotent=False)})
    room.broker.tick(1.5)
    assert not second.told
    # One that was lost, and waits for a server that is free.
    room.broker.declare({KEY: room.spec})
    room.caller.call(2)
    assert second.told == [(1, "open", b"v", 1, 10.0)]
    room.caller.call(3)
    room.broker.detach_server(first.it, GONE, 2.0)
    assert not room.caller.told
    room.broker.declare({KEY: msgspec.structs.replace(room.spec, idempotent=False)})
    error = room.caller.error_of(1)
    assert isinstance(error, CallUnknownError)
    assert "is not declared idempotent any more" in error.message
    assert not error.retryable
    room.answer(second, 1)
    assert second.told[1:] == [(2, "open", b"v", 1, 9.0)], "which nobody has had before"


def test_one_lost_and_one_refused_run_are_not_followed_by_another_one() -> None:
    """What was hedged while that was allowed: who refuses it says nothing of who was lost."""
    room = Room(idempotent=True, hedge_after_ms=500)
    first = room.serve(name="one")
    room.caller.call(1)
    second = room.serve(name="two")
    room.broker.tick(1.5)
    third = room.serve(name="three")
    room.broker.detach_server(first.it, GONE, 2.0)
    room.broker.declare({KEY: msgspec.structs.replace(room.spec, idempotent=False)})
    room.broker.server_refuses(second.it, 1, 2.5)
    assert isinstance(room.caller.error_of(1), CallUnknownError)
    assert not third.told


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_hedge_counts_from_the_server_that_has_the_call(is_lost: bool) -> None:
    """Not from one that has refused it, or was lost with it."""
    room = Room(idempotent=True, hedge_after_ms=500)
    first = room.serve(name="one")
    room.caller.call(1)
    second = room.serve(name="two")
    if is_lost:
        room.broker.detach_server(first.it, GONE, 1.25)
    else:
        room.broker.server_refuses(first.it, 1, 1.25)
    third = room.serve(name="three")
    assert [told[1] for told in second.told] == ["open"]
    room.broker.tick(1.5)
    assert not third.told
    assert room.broker.next_s == pytest.approx(1.75)
    room.broker.tick(1.75)
    assert [told[1] for told in third.told] == ["open"]
    room.answer(third, 1)
    assert room.broker.next_s == math.inf


def test_a_hedge_counts_among_the_servers_that_a_call_is_given_to() -> None:
    room = Room(idempotent=True, hedge_after_ms=5_000)
    servers = [room.serve(name=f"s{number}") for number in range(MAX_ATTEMPTS + 1)]
    room.caller.call(1)
    for _ in range(MAX_ATTEMPTS - 1):
        (has,) = [each for each in servers if each.it.held]
        room.broker.detach_server(has.it, GONE, 2.0)
    for now_s in (6.0, 7.0):
        room.broker.tick(now_s)
    assert sum(bool(each.told) for each in servers) == MAX_ATTEMPTS


def test_nobody_serves() -> None:
    room = Room(is_settled=False)
    room.caller.call(1, now_s=0.1)
    room.caller.call(2, now_s=0.1)
    assert not room.caller.told
    serving = room.serve(now_s=0.5)
    assert serving.told == [(1, "open", b"v", 1, 9.6)]
    room.broker.detach_server(serving.it, GONE, 0.6)
    assert isinstance(room.caller.error_of(1), CallUnknownError)
    assert room.broker.next_s == 1.0
    room.broker.tick(1.0)
    assert isinstance(room.caller.error_of(2), NoServerError)
    room.caller.call(3, key=("default", "other"))
    assert isinstance(room.caller.error_of(3), NotFoundError)
    serving = room.serve()
    room.broker.drain(serving.it)
    room.caller.call(4)
    assert isinstance(room.caller.error_of(4), NoServerError)


def test_what_waits_is_bounded_in_calls_and_in_bytes() -> None:
    room = Room(max_waiting=2)
    room.serve()
    for number in (1, 2, 3, 4):
        room.caller.call(number)
    assert isinstance(room.caller.error_of(4), OverloadedError)
    room = Room()
    room.serve()
    count = MAX_WAITING_BYTES // (1 << 20)
    for number in range(1, count + 2):
        room.caller.call(number, bytes(1 << 20))
    assert isinstance(room.caller.error_of(count + 1), OverloadedError)
    assert room.endpoint.waiting_bytes <= MAX_WAITING_BYTES
    room.broker.detach_caller(room.caller.it)
    assert (room.endpoint.waiting_bytes, len(room.endpoint.waiting)) == (0, 0)


def test_who_is_refused_before_servers_are_back_is_not_told_that_they_are_busy() -> None:
    count = MAX_WAITING_BYTES // CALL_WINDOW_BYTES
    room = Room(is_settled=False, input=STREAM, max_waiting=count)
    chunk = Value(0, bytes(CALL_WINDOW_BYTES), False)
    for number in range(1, count + 2):
        room.caller.call(number, None, now_s=0.1)
    for number in range(1, count + 1):
        room.broker.caller_value(room.caller.it, number, chunk)
    for number in (count, count + 1):
        error = room.caller.error_of(number)
        assert isinstance(error, OverloadedError)
        assert "no server of endpoint default/e is back yet" in error.message
        assert "busy" not in error.message
        assert error.hint == "call again in a second"


def test_what_waits_is_counted_with_its_headers() -> None:
    room = Room()
    room.serve()
    room.caller.call(1)
    opening = Opening(5.0, "", {"h": "ü" * 4_000}, "somebody")
    room.broker.open(room.caller.it, 2, KEY, opening, Value(0, b"v", True), 1.0)
    assert room.endpoint.waiting_bytes == 8_001 + 1 + CALL_VALUE_BYTES
    room.broker.caller_cancels(room.caller.it, 2)
    assert room.endpoint.waiting_bytes == 0


def test_one_caller_has_a_bound_of_its_own() -> None:
    room = Room(max_waiting=100_000)
    room.serve()
    for number in range(1, MAX_CALLS + 2):
        room.caller.call(number, b"")
    assert isinstance(room.caller.error_of(MAX_CALLS + 1), OverloadedError)
    with pytest.raises(RequestError, match="out of order"):
        room.caller.call(5)


def test_a_server_whose_way_is_full_is_passed_over() -> None:
    room = Room()
    full, other = room.serve(5, name="full"), room.serve(5, name="other")
    full.writable = False
    for number in range(1, 5):
        room.caller.call(number)
    assert (len(full.told), len(other.told)) == (0, 4)
    full.writable = True
    room.broker.server_writable(full.it, 1.0)
    for number in range(5, 10):
        room.caller.call(number)
    assert len(full.told) >= 3


def test_regions_come_first_where_they_have_room() -> None:
    room = Room()
    east, west = room.serve(1, region="aws.us-east-1"), room.serve(2, region="aws.us-west-2")
    room.caller.call(1, region="aws.us-east-1")
    room.caller.call(2, region="aws.us-east-1")
    room.caller.call(3, region="aws.us-east")
    assert (len(east.told), len(west.told)) == (1, 2)
    room.answer(east, 1)
    room.caller.call(4, region="aws.us-east-1")
    assert len(east.told) == 2


def test_the_less_loaded_of_two_is_taken() -> None:
    room = Room()
    busy, idle = room.serve(100, name="busy"), room.serve(100, name="idle")
    for number in range(1, 41):
        room.caller.call(number)
    assert abs(len(busy.told) - len(idle.told)) <= 10
    counts = sorted((len(busy.told), len(idle.told)))
    assert counts != [20, 20] or room.endpoint.in_flight == 40


# --- streams --------------------------------------------------------------------------------------


def test_a_streamed_input_follows_its_call_out_of_the_queue() -> None:
    room = Room(input="stream")
    serving = room.serve()
    room.caller.call(1, None)
    room.caller.call(2, b"a", is_last=False)
    room.broker.caller_value(room.caller.it, 2, Value(0, b"b", False))
    room.broker.caller_end(room.caller.it, 2)
    assert serving.told == [(1, "open", None, 1, 10.0)]
    room.answer(serving, 1)
    assert serving.told[1:] == [(2, "open", b"a", 1, 9.0), (2, b"b", False), (2, "end")]
    assert room.endpoint.waiting_bytes == 0
    room.broker.caller_value(room.caller.it, 2, Value(0, b"c", False))
    assert isinstance(room.caller.error_of(2), RequestError)


def test_who_floods_ends_its_own_call() -> None:
    room = Room(input="stream", output="stream")
    serving = room.serve(2)
    room.caller.call(1, None)
    room.caller.call(2, None)
    chunk = Value(0, bytes(CALL_WINDOW_BYTES // 2), False)
    for _ in range(3):
        room.broker.caller_value(room.caller.it, 1, chunk)
    assert isinstance(room.caller.error_of(1), FrameError)
    assert serving.told[-1] == (1, "cancel")
    for _ in range(3):
        room.broker.server_value(serving.it, 2, chunk, {}, 2.0)
    told = [told for told in room.caller.told if told[0] == 2]
    assert len(told) == 3
    assert isinstance(told[-1][1], CallFailedError)
    # With credit it goes on.
    room.caller.call(3, None)
    room.broker.server_end(serving.it, 1, {}, 2.0)
    for _ in range(5):
        room.broker.server_value(serving.it, 3, chunk, {}, 2.0)
        room.broker.caller_credit(room.caller.it, 3, len(chunk.data) + 32)
    assert serving.told[-1] == (3, "credit", len(chunk.data) + 32)
    assert len([told for told in room.caller.told if told[0] == 3]) == 5


def test_answers_that_break_the_endpoint_s_shape() -> None:
    room = Room()
    serving = room.serve(4)
    for number in (1, 2, 3):
        room.caller.call(number)
    room.answer(serving, 1, is_last=False)
    room.broker.server_end(serving.it, 2, {}, 2.0)
    room.answer(serving, 3, bytes(MAX_CALL_MESSAGE_BYTES + 1))
    for number, what in ((1, "with a stream"), (2, "without an answer"), (3, "value of 4194305")):
        error = room.caller.error_of(number)
        assert isinstance(error, CallFailedError)
        assert error.type == "BadAnswer"
        assert what in error.message
    # Two of these were the last word.
    assert list(serving.it.held) == [1]
    assert [told for told in serving.told if told[1:] == ("cancel",)] == [(1, "cancel")]
    room.broker.server_end(serving.it, 1, {}, 2.0)
    assert not serving.it.held


def test_who_does_not_read_its_answers_is_not_waited_for() -> None:
    room = Room()
    serving = room.serve(2)
    room.caller.call(1)
    room.caller.room = 10
    room.answer(serving, 1, bytes(11))
    error = room.caller.error_of(1)
    assert isinstance(error, CallFailedError), "it has run: nobody may take it for refused"
    assert (error.type, error.retryable) == ("AnswerLost", False)


def test_what_is_uploaded_to_a_server_whose_way_is_full_is_bounded() -> None:
    room = Room(input=STREAM)
    serving = room.serve(264)
    for number in range(1, 265):
        room.caller.call(number, None)
    serving.writable = False
    for number in range(1, 201):
        for _ in range(4):
            piece = Value(0, bytes(CALL_WINDOW_BYTES // 4), False)
            room.broker.caller_value(room.caller.it, number, piece)
    assert not room.caller.told, "who keeps to its window was ended"
    serving.writable = True
    room.broker.server_writable(serving.it, 2.0)
    serving.writable = False
    serving.told.clear()
    huge = Value(0, bytes(MAX_CALL_MESSAGE_BYTES), False)
    for number in range(201, 265):
        room.broker.caller_value(room.caller.it, number, huge)
    given = sum(len(each[1]) for each in serving.told if isinstance(each[1], bytes))
    assert 0 < given <= MAX_UNTOLD_BYTES
    error = room.caller.error_of(264)
    assert isinstance(error, CallFailedError), "it has begun: nobody may take it for refused"
    assert (error.type, error.retryable) == ("InputLost", False)
    assert serving.told[-1] == (264, "cancel")
    room.broker.detach_server(serving.it, GONE, 3.0)
    assert room.endpoint.untold_bytes == 0


def test_nobody_gives_more_credit_than_it_was_sent() -> None:
    room = Room(input=STREAM, output=STREAM)
    serving = room.serve()
    room.caller.call(1, b"x", is_last=False)
    room.broker.server_credit(serving.it, 1, 1 << 24)
    assert room.caller.told[-1] == (1, "credit", 1 + CALL_VALUE_BYTES)
    room.broker.caller_credit(room.caller.it, 1, 1 << 24)
    assert serving.told[-1][1] != "credit"
    room.broker.server_value(serving.it, 1, Value(0, b"ab", False), {}, 1.5)
    room.broker.caller_credit(room.caller.it, 1, 1 << 24)
    assert serving.told[-1] == (1, "credit", 2 + CALL_VALUE_BYTES)


def test_values_that_are_too_large_or_missing() -> None:
    room = Room()
    room.serve()
    room.caller.call(1, bytes(MAX_CALL_MESSAGE_BYTES + 1))
    room.caller.call(2, None)
    assert "the limit is" in room.caller.error_of(1).message
    assert "takes one value" in room.caller.error_of(2).message
    assert room.endpoint.in_flight == 0


@pytest.mark.parametrize(
    ("spec", "data", "is_single", "told"),
    [
        ({"output": STREAM}, b"v", True, "(input: single, output: stream) answers with a stream"),
        ({"input": STREAM}, b"v", True, "(input: stream, output: single) takes a stream"),
        ({"input": STREAM, "output": STREAM}, b"v", True, "takes a stream"),
        ({}, None, False, "(input: single, output: single) takes one value"),
        ({"output": STREAM}, b"v", False, ""),
        ({"input": STREAM}, b"v", False, ""),
        ({"input": STREAM}, None, False, ""),
        ({}, b"v", True, ""),
        ({}, b"v", False, ""),
    ],
)
def test_a_call_of_another_shape_than_the_endpoint_s_is_not_run(
    spec: dict[str, Any], data: bytes | None, is_single: bool, told: str
) -> None:
    room = Room(**spec)
    serving = room.serve()
    room.caller.call(1, data, is_single=is_single)
    assert bool(serving.told) == (not told)
    if told:
        error = room.caller.error_of(1)
        assert isinstance(error, RequestError)
        assert told in error.message
        assert "endpoint default/e" in error.message
        assert "client.call_stream" in error.hint


# --- silence, and what is declared ----------------------------------------------------------------


def test_a_server_is_not_silent_while_nobody_listens_to_it() -> None:
    """Its connection is not read: too much waits for it there, or for this node's disk."""
    room = Room()
    serving = room.serve(silence_s=2.0)
    for tenth in range(11, 41):
        serving.deaf_s += 0.1
        room.broker.tick(tenth / 10)
    assert not serving.it.is_gone
    room.broker.heard(serving.it, 4.0)
    for tenth in range(41, 60):
        room.broker.tick(tenth / 10)
    assert not serving.it.is_gone
    room.broker.tick(6.1)
    assert serving.it.is_gone
    assert "said nothing for 2.1 s" in serving.told[-1][1].message


def test_a_silent_server_is_lost_and_a_leader_that_was_busy_hears_again() -> None:
    room = Room()
    silent = room.serve(name="silent", silence_s=2.0)
    room.caller.call(1)
    for tenth in range(11, 30):
        room.broker.tick(tenth / 10)
    assert not room.caller.told
    room.broker.tick(3.1)
    assert isinstance(room.caller.error_of(1), CallUnknownError)
    assert isinstance(silent.told[-1][1], ConnectionLostError)
    assert not room.broker.has_watched
    other = room.serve(name="other", silence_s=2.0, now_s=3.1)
    # The leader itself was away: nobody's fault.
    room.broker.tick(9.0)
    assert not other.it.is_gone
    room.broker.tick(9.9)
    room.broker.tick(10.8)
    room.broker.tick(11.1)
    assert other.it.is_gone


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_endpoint_that_is_deleted_ends_what_it_has(idempotent: bool) -> None:
    room = Room(idempotent=idempotent)
    serving = room.serve()
    room.caller.call(1)
    room.caller.call(2)
    room.broker.declare({})
    error = room.caller.error_of(1)
    assert isinstance(error, CallUnknownError), "a server has it: nobody may call again behind it"
    assert "was deleted, or lives elsewhere by now" in error.message
    assert error.retryable is idempotent
    assert isinstance(room.caller.error_of(2), NotFoundError)
    assert isinstance(serving.told[-1][1], NotFoundError)
    with pytest.raises(NotFoundError) as raised:
        room.serve()
    assert "`hadron create endpoint e`" in raised.value.hint
    room.broker.declare({KEY: room.spec})
    other = Caller(room.broker)
    other.call(1)
    assert isinstance(other.error_of(1), NoServerError)


def test_an_endpoint_of_another_shape_ends_what_it_has() -> None:
    """Its servers were made for the one before: one would answer a stream as a value."""
    room = Room()
    serving = room.serve()
    room.caller.call(1)
    room.caller.call(2)
    room.broker.declare({KEY: room.spec})
    assert not serving.it.is_gone
    room.broker.declare({KEY: msgspec.structs.replace(room.spec, output="stream")})
    assert isinstance(room.caller.error_of(1), CallUnknownError)
    for error in (room.caller.error_of(2), serving.told[-1][1]):
        assert isinstance(error, RequestError)
        assert "declared anew, with `input: single` and `output: stream`" in error.message
    assert serving.it.is_gone
    room.serve()
    room.caller.call(3)


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ((SINGLE, SINGLE), False),
        ((STREAM, STREAM), False),
        ((STREAM, ""), True),
        ((STREAM, SINGLE), True),
        (("", ""), True),
    ],
)
def test_a_server_whose_handler_was_made_for_another_shape_is_refused(
    shape: tuple[str, str], fits: bool
) -> None:
    room = Room(input=STREAM)
    if fits:
        room.serve(shape=shape)
        return
    with pytest.raises(RequestError, match="with `input: stream` and `output: single`"):
        room.serve(shape=shape)
    assert not room.endpoint.servers


def test_a_refused_streamed_input_says_that_another_call_may_do() -> None:
    """Nothing of it is kept, so another server cannot be given it."""
    room = Room(input="stream")
    leaving, other = room.serve(5, name="a"), room.serve(5, name="b")
    room.caller.call(1, b"x", is_last=False)
    has = leaving if leaving.told else other
    room.broker.server_refuses(has.it, 1, 1.5)
    error = room.caller.error_of(1)
    assert isinstance(error, NoServerError)
    assert "leaves: the call was not run" in error.message
