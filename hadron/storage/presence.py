"""Noticing that a node's files are not there any more, or are not the ones that it has open.

A process goes on reading and writing a file that was removed, moved away or replaced by another one
of its name: everything is acknowledged, and nothing of it is there after a restart. SQLite does not
look, and its locks hold on to the old file. So the names are compared with what they meant when the
files were opened, a few `stat` calls twice a second; what was acknowledged in between is on a disk
that counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from hadron.model.errors import StorageError
from hadron.model.ports import Disk, FileId

_LOOK_EVERY_S: Final = 0.5

_REBUILT: Final = "started without it, it is rebuilt by its peers"
_GONE: Final = (
    "else `hadron restore` it from a backup: no other node has what was there, and started without "
    "it, this one begins with nothing"
)


class Presence:
    """Watches the files of an open store. `run` must be running.

    Args:
        paths: what must stay what it is now; directories first, as the error names the first one
            that is not.
        has_peers: somebody has what is lost with these files.
        on_lost: told once that one is not.
    """

    def __init__(
        self,
        disk: Disk,
        paths: Sequence[Path],
        on_lost: Callable[[StorageError], None],
        *,
        has_peers: bool,
    ) -> None:
        self._disk = disk
        self._on_lost = on_lost
        self._otherwise = _REBUILT if has_peers else _GONE
        self._known: dict[Path, FileId | None] = {path: disk.file_id(path) for path in paths}

    def look(self) -> StorageError | None:
        """What is not there any more; None when all is."""
        for path, known in self._known.items():
            try:
                now = self._disk.file_id(path)
            except OSError as error:
                return StorageError(
                    f"{path} cannot be looked at any more: {error.strerror or error}",
                    "check the disk and who may read it, then start the node again",
                )
            if now != known:
                what = (
                    "was removed or moved away"
                    if now is None
                    else "is not the file that was opened, but another one of its name"
                )
                return StorageError(
                    f"{path} {what} while this node runs on it: what it writes would be lost",
                    f"put back what was there and start the node again; {self._otherwise}",
                )
        return None

    async def run(self) -> None:
        """Look now and then, until something is gone."""
        while True:
            lost = self.look()
            if lost is not None:
                self._on_lost(lost)
                return
            await trio.sleep(_LOOK_EVERY_S)
