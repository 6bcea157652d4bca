"""What leaders, and clients, say of transactions comes again: at once, or when all of that is over.

On one connection nothing comes twice. But what is said again because an answer is late does, and
the rules of transactions count on no more than this: messages are lost, late, doubled and in any
order (PROTOCOL E2, E8).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import trio

from hadron.model.transactions import TransactionId
from hadron.sim.notes.wrapping import wrapped
from hadron.transactions.messages import Message, Prepare
from hadron.transactions.part import Transactions

REPEATED: Final = "message of a transaction repeated"

_LATER_S: Final = (0.0, 0.05, 0.5, 3.0)


@contextmanager
def repeating(
    nursery: trio.Nursery,
    chance: random.Random,
    faults: Counter[str],
    *,
    share: float,
    lost: float = 0.0,
) -> Iterator[None]:
    """Have so many of the messages between leaders come again, for the length of the block: also
    to who leads the same set next. Some are lost the first time."""
    leading: dict[str, Transactions] = {}
    heard: set[tuple[Transactions, TransactionId, int]] = set()

    async def again(home: str, name: str, message: Message) -> None:
        await trio.sleep(chance.choice(_LATER_S))
        part = leading.get(home)
        # Of a node that has crashed nothing runs any more.
        if part is not None and part.driver._nursery is not None and part.driver._log.leads:
            faults[REPEATED] += 1
            receive(part, name, message)

    receive: Any = Transactions.receive

    def hears(original: Any) -> Any:
        def hear(part: Transactions, name: str, message: Message) -> None:
            home = part.driver._home
            leading[home] = part
            if chance.random() < share:
                if isinstance(message, Prepare):
                    message = msgspec.structs.replace(message, body=bytes(message.body))
                nursery.start_soon(again, home, name, message)
            prepare = message if isinstance(message, Prepare) else None
            if chance.random() >= lost:
                if prepare is not None:
                    heard.add((part, prepare.transaction, prepare.first))
                original(part, name, message)
            elif prepare is not None and (part, prepare.transaction, prepare.first) not in heard:
                # What is lost was never read: nothing was claimed for it.
                part.claims.settle((prepare.transaction, prepare.first))

        return hear

    with wrapped(Transactions, receive=hears):
        yield
