"""What is said in one request of what became of invocations."""

from __future__ import annotations

from collections import deque

from hadron.client.handling.ends import End, _portion
from hadron.client.handling.invocation import reason_of
from hadron.wire.messages import pipelines_pb2


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
