"""Run a command that the kernel ends when its parent does: `leash.py PARENT_PID COMMAND…`.

A script of its own, run before the command in the same process, because the setting survives exec
and a hook between fork and exec would not be safe in a parent with threads. Linux only; elsewhere
the command simply runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform.startswith("linux"):
        # SIGKILL: a paused node would never handle anything milder, and nodes are crash-safe.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
