"""Whether a cancellation is meant for who is cancelled."""

from __future__ import annotations

import asyncio


def is_stray(error: BaseException) -> bool:
    """Whether nobody has cancelled this task: in asyncio, who awaits something that was cancelled
    by somebody else, such as another task, raises the same. (In trio only a scope around it can.)
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
