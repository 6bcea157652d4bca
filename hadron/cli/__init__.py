"""The `hadron` command: a module per command, in `commands`, each imported only when it is used.

Nothing here is imported by other rooms. `main` is the console script.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default `sys.argv[1:]`) and return its exit status.

    0 done, 1 refused or failed, 2 usage, 130 interrupted, 141 the reader of a pipe went away.
    Errors go to stderr as `error:` and `hint:` lines; no exception leaves this function.
    """
    try:
        from hadron.cli.root import run
    except KeyboardInterrupt:
        # Importing takes most of a short command's time.
        return 130

    return run(arguments)
