"""What a child process must not touch: everything that was open when its parent called `fork()`.

The child has a copy of each object and of each socket, but no other thread: a loop that ran in one
is gone, and bytes on a connection of the parent's would be taken for the parent's. Those who are
told here say so from then on, with `ForkedError`, or begin anew.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet

from hadron.model.errors import ForkedError


class Forkable(Protocol):
    """Something open."""

    def forked(self) -> None:
        """Called in the child: end, waiting for nothing and telling nobody."""
        ...


_watched: WeakSet[Any] = WeakSet()
_pids: list[int] = [os.getpid()]
"""This process, behind those from which it was forked."""


def watch(opened: Forkable) -> None:
    """Tell it in a child process."""
    _watched.add(opened)


def error(what: str) -> ForkedError:
    """That `what` belongs to this process's parent."""
    return ForkedError(
        f"the {what} was opened by process {_pids[-2]}, and this one, {_pids[-1]}, was forked from "
        "it since",
        "open another one in this process",
    )


def _tell() -> None:
    _pids.append(os.getpid())
    for opened in list(_watched):
        opened.forked()


os.register_at_fork(after_in_child=_tell)
