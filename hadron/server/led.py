"""What a leader serves with nothing but its leadership: the list in which a feature has a line.

Whatever else nodes serve belongs to one of their parts, and is put together with these in
`node/member.py`.
"""

from __future__ import annotations

from typing import Final

from hadron.server import sinks, streams, transactions
from hadron.server.endpoints import calls as endpoints
from hadron.server.exchanges import calls as exchanges
from hadron.server.groups import calls as groups
from hadron.server.pipelines import backfills, signals
from hadron.server.pipelines import calls as pipelines
from hadron.server.statements import Statements
from hadron.serving.entrance import Led

STATEMENTS: Final = Statements(
    groups.STATEMENTS, pipelines.STATEMENTS, sinks.STATEMENTS, streams.STATEMENTS
)
"""What of them may stand in a transaction."""

LED: Final[tuple[Led, ...]] = (
    *exchanges.METHODS,  # attend, publish, how they are doing
    *endpoints.METHODS,  # remote calls: callers, servers, who is there
    *groups.METHODS,  # subscriptions, and what there is to know and to change of groups
    *backfills.METHODS,  # of pipelines
    *pipelines.METHODS,  # stage runners, completions, instances
    *signals.METHODS,  # what people and programs say to stages that wait
    *sinks.METHODS,  # what bulk writers stage, how far their queries are
    *streams.METHODS,  # produce, fetch, offsets
    *transactions.methods(STATEMENTS),  # what clients drive, outcomes, what operators do
)
