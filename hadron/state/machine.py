"""Commands: how they are written into the log, and how one is applied.

A command is a struct with a number; on disk it is a MessagePack array, the number first. Fields
are only ever added at the end, with a default that means what was before; numbers are never
reused. A node that meets a number it does not know stops: it cannot hold the same tables any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from hadron.model.errors import CorruptionError
from hadron.model.ids import Ballot
from hadron.model.ports import Database

APPLY_VERSION: Final = 2
"""Of the rules that this version of Hadron knows: raised when there are new commands, or when an
`apply` function does something else with a known one (PROTOCOL A5).

2: commands 11 to 23, options of groups, and all kinds of objects but `schema.FIRST_KINDS`.
"""


class Command(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Base of all commands.

    Attributes:
        uses_reserve: it is logged also when the disk has no room for ordinary writes: it ends
            something, or makes room (PROTOCOL B7).
        is_of_groups: it belongs to consumer groups, which have a share of each commit.
        since: the version of the rules that has brought it.
    """

    uses_reserve: ClassVar[bool] = False
    is_of_groups: ClassVar[bool] = False
    since: ClassVar[int] = 1

    @property
    def rows(self) -> int:
        """Of tables that it changes, about: what running it costs."""
        return 1

    def needs_rules(self) -> int:
        """The version of the rules that every member must know before this is logged."""
        return self.since


C = TypeVar("C", bound=Command)


@dataclass(slots=True)
class Context:
    """What an `apply` function may look at besides its command: all of it is in the log."""

    db: Database
    replica_set: str
    ballot: Ballot
    lsn: int
    now_ms: int


class NoChange(Exception):  # noqa: N818 - not an error
    """Raised by `apply` when the command was done before: nothing is logged, and the original's
    result is the answer, once the original is committed (PROTOCOL A2)."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


Apply = Callable[[Context, Any], Any]

_APPLY: Final[dict[type[Command], Apply]] = {}
_SEAL: Final[dict[type[Command], Apply]] = {}
_TABLES: Final[list[str]] = []
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Command] | None = None


def tables(sql: str) -> None:
    """Register a feature's tables (CREATE … IF NOT EXISTS)."""
    _TABLES.append(sql)


def applies(
    command: type[C],
) -> Callable[[Callable[[Context, C], Any]], Callable[[Context, C], Any]]:
    """Register the decorated function as what applies `command`.

    It may raise a `RequestError` to refuse the command (nothing is logged, what it wrote is
    rolled back) or `NoChange`.
    """

    def register(function: Callable[[Context, C], Any]) -> Callable[[Context, C], Any]:
        global _decoder
        assert command not in _APPLY
        _APPLY[command] = function
        _decoder = None
        return function

    return register


def seals(
    command: type[C],
) -> Callable[[Callable[[Context, C], C]], Callable[[Context, C], C]]:
    """Register the decorated function as what a leader completes `command` with, from its tables
    as they are where it is logged. It only reads."""

    def register(function: Callable[[Context, C], C]) -> Callable[[Context, C], C]:
        _SEAL[command] = function
        return function

    return register


def seal(context: Context, command: Command) -> Command:
    """The command as it is to be logged and applied: most are as they were submitted."""
    complete = _SEAL.get(type(command))
    if complete is None:
        return command
    sealed = complete(context, command)
    assert isinstance(sealed, Command)
    return sealed


def all_tables() -> str:
    """The tables of every feature, in an order that does not depend on who was imported first:
    files of nodes that run the same version are made alike."""
    return "\n".join(sorted(_TABLES))


def encode(command: Command) -> bytes:
    return _encode(command)


def decode(data: bytes) -> Command:
    """Raises `CorruptionError` when the bytes are no command that this version knows."""
    global _decoder
    if _decoder is None:
        union: Any = None
        for command in _APPLY:
            union = command if union is None else union | command
        _decoder = msgspec.msgpack.Decoder(union)
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptionError(
            f"a command in the log cannot be understood: {error}",
            "was it written by a newer version of Hadron? start that one",
        ) from error


def apply(context: Context, command: Command) -> Any:
    """Apply one command inside the caller's transaction."""
    return _APPLY[type(command)](context, command)
