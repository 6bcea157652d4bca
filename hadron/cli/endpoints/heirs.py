"""Programs that `hadron serve` has started, which are not to outlive it, whatever ends it.

Each is a process group of its own, so that what it starts ends with it, too. A shell reads from a
pipe which of them there are; when nobody writes there any more, it ends them.

*(Linux can send a signal when a parent dies, but means the parent's thread: trio starts processes
in threads that end when they have nothing to do.)*
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Final

import trio

_WATCH: Final = """
trap '' INT TERM HUP
all=' ' left=
while read -r what group; do
    case $what in
        +) all="$all$group " ;;
        -) all="${all%% $group *} ${all#* $group }" ;;
    esac
done
for group in $all; do kill -s TERM -- "-$group" 2>/dev/null && left=1; done
[ -z "$left" ] || sleep 2
for group in $all; do kill -s KILL -- "-$group" 2>/dev/null; done
"""
"""What is told with `+ GROUP` and not with `- GROUP` is ended once no more comes."""


def kill_group(group: int, number: signal.Signals) -> None:
    """Where there is nobody in it any more, nothing happens."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Heirs:
    """Those that run now."""

    def __init__(self, told: IO[bytes]) -> None:
        self._told = told

    async def start(
        self,
        words: Sequence[str],
        *,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> trio.Process:
        """With pipes for its stdin and stdout. Raises `OSError`."""
        process = await trio.lowlevel.open_process(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            process_group=0,
        )
        self._tell(b"+", process)
        return process

    def forget(self, process: trio.Process) -> None:
        """It has ended."""
        self._tell(b"-", process)

    def _tell(self, what: bytes, process: trio.Process) -> None:
        # Somebody may have killed who watches: nothing worse than before happens then.
        with contextlib.suppress(OSError):
            self._told.write(b"%b %d\n" % (what, process.pid))
            self._told.flush()


@contextlib.contextmanager
def watched() -> Iterator[Heirs]:
    """Programs that are started meanwhile end at the latest with this process."""
    nowhere: Any = subprocess.DEVNULL
    with subprocess.Popen(
        ["/bin/sh", "-c", _WATCH],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=nowhere,
        stderr=nowhere,
        start_new_session=True,
    ) as watcher:
        assert watcher.stdin is not None
        yield Heirs(watcher.stdin)
