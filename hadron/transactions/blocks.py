"""Which call may begin which transactions. Pure.

Each call has blocks of numbers, in which it numbers its transactions itself: so it can name one
before any answer. Safety rule: a number is begun once, by the call that has it, and numbers of a
block are begun in rising order. So what comes late for a transaction that is over does not begin it
again, and what comes for a call that has ended begins nothing.
"""

from __future__ import annotations

import itertools
from typing import Final

from hadron.model.ids import Ballot
from hadron.model.transactions import BLOCK_BITS, TransactionId

MAX_CALLER_BLOCKS: Final = 2
"""The one that a call uses, and the next one before it needs it."""


class _Block:
    """Numbers of one call; those up to `last` are used up."""

    __slots__ = ("caller", "last")

    def __init__(self, caller: int, first: int) -> None:
        self.caller = caller
        self.last = first - 1


class Blocks:
    """All blocks of one leadership."""

    def __init__(self, home: str, ballot: Ballot) -> None:
        self._home = home
        self._ballot = ballot
        self._callers: dict[int, list[int]] = {}
        self._blocks: dict[int, _Block] = {}
        self._next = itertools.count(1)

    def __contains__(self, caller: int) -> bool:
        """Whether the call has not ended."""
        return caller in self._callers

    def give(self, caller: int) -> TransactionId:
        """Another block for a call; returns its first number's transaction."""
        blocks = self._callers.setdefault(caller, [])
        if len(blocks) == MAX_CALLER_BLOCKS:
            # What is open in it goes on, but nothing new begins there.
            del self._blocks[blocks.pop(0)]
        number = next(self._next)
        blocks.append(number)
        first = number << BLOCK_BITS
        self._blocks[number] = _Block(caller, first)
        return TransactionId.of(self._home, self._ballot, first)

    def drop(self, caller: int) -> None:
        """The call has ended."""
        for number in self._callers.pop(caller, ()):
            del self._blocks[number]

    def begin(self, caller: int, transaction: TransactionId, count: int = 1) -> bool:
        """Whether the call may begin it, and those numbered behind it up to `count`; from here on
        nobody may."""
        if transaction.ballot != self._ballot or transaction.replica_set != self._home:
            return False
        block = self._blocks.get(transaction.block)
        if block is None or block.caller != caller or transaction.number <= block.last:
            return False
        last = transaction.number + count - 1
        if last >> BLOCK_BITS != transaction.block:
            return False
        block.last = last
        return True

    def may_begin(self, transaction: TransactionId) -> bool:
        """Whether some call still may."""
        block = self._blocks.get(transaction.block)
        return block is not None and transaction.number > block.last

    def use_up(self, transaction: TransactionId) -> None:
        """Nobody may begin it any more."""
        block = self._blocks.get(transaction.block)
        is_own = transaction.replica_set == self._home and transaction.ballot == self._ballot
        if block is not None and is_own:
            block.last = max(block.last, transaction.number)
