"""What hints say of objects that are not there: the command that makes one, where there is one."""

from __future__ import annotations

from hadron.cli.commands import create
from hadron.model.kinds import CREATED, how_to_make


def test_what_is_not_there_is_made_by_a_command_where_there_is_one() -> None:
    assert set(create.command.commands) == {kind.lower() for kind in CREATED}
    assert how_to_make("Endpoint", "default", "quote").startswith(
        "create it with `hadron create endpoint quote`, "
    )
    assert "`hadron create exchange prices --namespace shop`" in how_to_make(
        "Exchange", "shop", "prices"
    )
    assert "`hadron create stream NAME`" in how_to_make("Stream", "default", "a b")
    assert how_to_make("Pipeline", "default", "p") == "declare it with `hadron apply`"
