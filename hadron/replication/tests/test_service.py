"""What peers are answered, whatever they ask: by the table of the methods, so that one which is
added is looked at as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hadron.model.errors import FencedError, HadronError
from hadron.model.ids import Ballot
from hadron.replication.tests.support import DIGEST, FIRST, UUID
from hadron.replication.tests.test_appends import Replica, replica
from hadron.wire.messages import Method, ballot_to, replication_pb2

LATER: Final = Ballot(1, 2)
_Outcome: Final = replication_pb2.AppendResponse


def under_a_ballot(one: Replica) -> list[Method]:
    """Everything that is asked under a ballot."""
    methods = [each.method for each in one.service().methods()]
    return [each for each in methods if "ballot" in each.request.DESCRIPTOR.fields_by_name]


async def is_fenced(one: Replica, asked: Method, ballot: Ballot) -> bool:
    """Whether the question is refused for its ballot, in whatever words that method has for it."""
    request: Any = asked.request(ballot=ballot_to(ballot))
    for field, value in (("config_digest", DIGEST), ("replica_set_uuid", UUID)):
        if field in asked.request.DESCRIPTOR.fields_by_name:
            setattr(request, field, value)
    try:
        answer, _ = await one.connections[0].request(asked, request)
    except FencedError:
        return True
    except HadronError:
        return False
    if isinstance(answer, replication_pb2.PromiseResponse):
        return not answer.promised
    return getattr(answer, "outcome", None) == _Outcome.FENCED


async def test_nothing_is_answered_under_a_ballot_below_the_promised_one(tmp_path: Path) -> None:
    """Not even a question: who asks it compares its log with this one, to lead (PROTOCOL B1)."""
    async with replica(tmp_path) as one:
        one.follower.promise(LATER, DIGEST, UUID, found=False)
        asked = under_a_ballot(one)
        assert len(asked) > 3
        assert [each for each in asked if not await is_fenced(one, each, FIRST)] == []
        assert [each for each in asked if await is_fenced(one, each, LATER)] == []
        assert one.store.identity.current.promised == LATER
