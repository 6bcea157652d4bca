"""Errors that come out of closing a dead node's files, told from what stopped it."""

from __future__ import annotations

import apsw

from hadron.storage.store import Store


def without_closing(error: BaseException) -> BaseException | None:
    """What stopped a node, if closing its files failed after that.

    SQLite shrugs when the disk fails the checkpoint at a connection's end, and so does a node on
    a real disk; but what a Python VFS raises comes out of `close()`.
    """
    if not isinstance(error, apsw.Error) or not _was_closing(error):
        return error
    earlier: BaseException | None = error
    while isinstance(earlier, apsw.Error | OSError):
        earlier = earlier.__context__
    return earlier


def _was_closing(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_qualname == Store.close.__qualname__:
            return True
        frame = frame.tb_next
    return False
