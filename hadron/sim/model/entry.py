"""An entry of the log as the model sees it, and how a command that does nothing ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hadron.model.errors import HadronError
from hadron.model.ids import Ballot
from hadron.state.machine import Command

Rows = dict[str, list[tuple[Any, ...]]]
"""By table."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`tombstones`: so many deletions were remembered one by one where it was applied. `start`:
    where in the entry's body the batch of this command begins, if it is one of several; or in that
    of `body_lsn`, an earlier one."""

    command: Command
    lsn: int
    now_ms: int
    ballot: Ballot
    tombstones: int = 0
    start: int | None = None
    body_lsn: int | None = None


class Refused(Exception):  # noqa: N818 - the model's word for a refusal, which is no error of it
    """The command is refused with such an error; nothing has changed."""

    def __init__(self, kind: type[HadronError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


class Known(Exception):  # noqa: N818
    """The command was done before, or has nothing to do; `result` is the answer."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
