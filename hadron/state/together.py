"""Several commands in one entry: all of them, or none.

Each is applied as if it stood alone, in order; a later one sees what an earlier one did. Their
batches stand one after the other in the entry's body, in the order of the commands: a batch says
itself how long it is, and its command says so, too. Where there are several, the body is counted
(`state.bodies`), and each batch is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from hadron.model.errors import RequestError
from hadron.state import bodies, leadership
from hadron.state.machine import Command, Context, Feature, NoChange, encode


class DoTogether(Command[tuple[Any, ...]], frozen=True, array_like=True, tag=24):
    """Apply these, encoded as they are logged, in order."""

    commands: tuple[bytes, ...]

    @classmethod
    def of(cls, *commands: Command) -> DoTogether:
        return cls(tuple(map(encode, commands)))

    @property
    def joined(self) -> tuple[bytes, ...]:
        return self.commands


def with_batches(context: Context, commands: Sequence[Command]) -> Iterator[Command]:
    """Commands of an entry, each in its turn with its batches of the entry's body."""
    shapes = [shape for each in commands for shape in each.batches]
    if len(shapes) > 1:
        bodies.count(context, sum(shape.size for shape in shapes))
        context.start = 0
    for each in commands:
        leadership.check_rules(context, each)
        yield each
        if context.start is not None:
            context.start += size_of([each])


def size_of(commands: Iterable[Command]) -> int:
    """Bytes of their batches."""
    return sum(shape.size for each in commands for shape in each.batches)


def apply_do_together(context: Context, command: DoTogether) -> tuple[Any, ...]:
    """Returns the results, in order.

    Raises `NoChange` when all of it was done before, `RequestError` when a part of it was and the
    rest was not, and what the commands raise.
    """
    machine = context.machine
    commands = [machine.decode(each) for each in command.commands]
    results: list[Any] = []
    known = 0
    for each in with_batches(context, commands):
        if not each.is_joinable:
            raise RequestError(f"{type(each).__name__} is an entry of its own, or none")
        try:
            results.append(machine.apply_part(context, each))
        except NoChange as done:
            results.append(done.result)
            known += 1
    if known == len(commands):
        raise NoChange(tuple(results))
    if known:
        # Half of what was sent would be there twice, or all of it once, in two parts.
        raise RequestError(
            f"of {len(commands)} commands that are one entry {known} were done before",
            "what was sent together is sent again together, or not at all",
        )
    return tuple(results)


FEATURE: Final = Feature(name="together", commands={DoTogether: apply_do_together})
