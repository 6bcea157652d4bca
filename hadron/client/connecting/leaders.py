"""Asking the leaders of several partitions.

Rule: all leaders are asked at the same time, and each has its own outcome. One that is away, with
its region perhaps, keeps nobody from what the others say or have done; `IncompleteError` carries
both halves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import anyio

from hadron.client.connecting.session import Session
from hadron.model.errors import HadronError, IncompleteError, RequestError

LOOK_HINT: Final = "bring them back, see `hadron status`; what the others said is complete"

T = TypeVar("T")


async def ask_each(
    session: Session, names: Sequence[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, HadronError]]:
    """The outcome of each, asked all at the same time."""
    answers: dict[str, T] = {}
    failed: dict[str, HadronError] = {}

    async def ask_one(name: str) -> None:
        try:
            answers[name] = await ask(name)
        except HadronError as error:
            failed[name] = error

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(ask_one, name)
    session.check_open()
    return answers, {name: failed[name] for name in names if name in failed}


def check_complete(
    found: Sequence[Any], failed: Mapping[str, HadronError], asked: int, trouble: str, hint: str
) -> None:
    """Raises what kept a single partition from its answer, or `IncompleteError` for several."""
    if not failed:
        return
    if asked == 1:
        raise next(iter(failed.values()))
    refused = [error.hint for error in failed.values() if isinstance(error, RequestError)]
    reasons = "; ".join(f"{name}: {error.message}" for name, error in failed.items())
    raise IncompleteError(
        f"{len(failed)} of {asked} partitions {trouble}: {reasons}",
        "; ".join(filter(None, [hint, *dict.fromkeys(refused)])),
        retryable=not refused,
        found=found,
        failed=failed,
    )
