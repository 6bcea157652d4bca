"""What is said in one request of what became of invocations."""

from __future__ import annotations

from collections import deque

from hadron.client.handling.ends import End, _portion
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
