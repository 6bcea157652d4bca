"""What is said in one request of what became of invocations, and of those that nobody hears."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments

from __future__ import annotations

import logging
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client.handling.ends import End, Ends, _portion
from hadron.client.handling.invocation import reason_of
from hadron.model.errors import HadronError, NotLeaderError, OverloadedError, RequestError
from hadron.wire.messages import pipelines_pb2


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def test_an_instance_is_named_once_in_a_request() -> None:
    """Its leader has failed while its end waited to be said, and the next one has given the same
    attempt to the same program: a request that names it twice ends it not at all."""

    def end(instance_id: int) -> End:
        return End(pipelines_pb2.Invocation(instance_id=instance_id, attempt=1), 0)

    waiting = deque(map(end, (11, 13, 11, 13, 15)))
    said = []
    while waiting:
        ends, _ = _portion(waiting, 0)
        said.append([each.invocation.instance_id for each in ends])
    assert said == [[11, 13], [11, 13, 15]]


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_says_nothing_is_the_reason_by_its_name() -> None:
    """Raised where its attempt ends, the words of it would end the program instead."""
    assert reason_of(MuteError()) == "MuteError"
    assert reason_of(ValueError()) == "ValueError"
    assert reason_of(ValueError("no\ncarrier")) == "ValueError: no carrier"


def test_whatever_the_reason_is_it_can_be_sent() -> None:
    """Found where the request is made, it would end the client instead of the attempt."""
    assert reason_of(ValueError("no file \udcff")) == "ValueError: no file \\udcff"
    assert reason_of("no file \udcff") == "no file \\udcff"
    assert len(reason_of("x" * 5_000_000)) < 70_000


def test_what_says_nothing_is_refused_also_where_it_cannot_be_shown() -> None:
    class OddError:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(RequestError, match=r"^<OddError> does not say why a stage has failed"):
        reason_of(OddError())


async def test_one_trouble_is_told_once_in_a_while_whoever_has_it(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk refuses each of a thousand invocations, once a second."""
    session: Any = SimpleNamespace(closed=None, ports=SimpleNamespace(random=random.Random(1)))
    ends = Ends(session, calls=SimpleNamespace())  # type: ignore[arg-type]
    trouble: HadronError | None = OverloadedError("no room is left on n1's disk")

    async def say() -> None:
        if trouble is not None:
            raise trouble

    with caplog.at_level(logging.WARNING):
        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(ends.insist, say)
            await trio.sleep(9.0)
            assert [record.getMessage() for record in caplog.records] == [
                "what became of an invocation is said again soon: no room is left on n1's disk"
            ]
            trouble = NotLeaderError("n2 leads")
            await trio.sleep(2.0)
            assert len(caplog.records) == 2, "another reason is told at once"
            trouble = OverloadedError("no room is left on n1's disk")
            await trio.sleep(2.0)
            assert "times since this was last said" in caplog.messages[-1]
            trouble = None
    assert len(caplog.records) == 3
