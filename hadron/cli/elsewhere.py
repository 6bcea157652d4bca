"""What people type who know other tools, or another command of this one, and what it is called
here. A name of its own beside the near misses: no spelling leads from `topic` to `stream`.
"""

from __future__ import annotations

from typing import Final

_STREAMS: Final = "`hadron get streams` lists them, `hadron create stream NAME` makes one"
_NODES: Final = "`hadron dev` runs one node, `hadron cluster up` three"

_COMMANDS: Final[dict[str, dict[str, str]]] = {
    "hadron": {
        **dict.fromkeys(("stream", "streams", "topic", "topics"), _STREAMS),
        **dict.fromkeys(("ls", "list"), "`hadron get streams` lists streams"),
        **dict.fromkeys(("publish", "produce", "send"), "`hadron pub` publishes"),
        **dict.fromkeys(("consume", "subscribe", "tail"), "`hadron sub` follows a stream"),
        "cat": "`hadron read` prints what a stream has",
        "rm": "`hadron delete` deletes",
        **dict.fromkeys(("start", "server", "run", "up"), _NODES),
        **dict.fromkeys(("stop", "down"), "`hadron cluster down` stops a cluster"),
        "version": "`hadron --version` prints it",
        **dict.fromkeys(("transaction", "transactions"), "`hadron tx list` lists them"),
    },
    "hadron create": {
        "topic": "`hadron create stream` makes one",
        "pipeline": "`hadron apply -f FILE` makes what a file declares",
    },
    "hadron group": dict.fromkeys(("show", "status"), "`hadron group describe` shows one"),
    "hadron pipeline": {
        **dict.fromkeys(("list", "ls", "status"), "`hadron pipeline show` shows all"),
        "describe": "`hadron describe pipeline NAME` shows one, `hadron pipeline show` all",
        "create": "`hadron apply -f FILE` makes what a file declares",
    },
    "hadron tx": dict.fromkeys(("describe", "status"), "`hadron tx show` shows one"),
}
"""Path of a group → what is typed below it → what to type."""

_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "hadron pub": {"-f": "--file is -l"},
    "hadron read": {"-n": "--limit is -c"},
    "hadron sub": {"-n": "--limit is -c"},
}
"""Path of a command → an option that it does not have → the one that is meant."""


def command_here(group: str, name: str) -> str:
    """Of the command `name` that the group with this path does not have: " (what to type)", or ""
    where nothing is known."""
    return _told(_COMMANDS.get(group, {}).get(name, ""))


def option_here(command: str, name: str) -> str:
    """The same of an option."""
    return _told(_OPTIONS.get(command, {}).get(name, ""))


def _told(way: str) -> str:
    return way and f" ({way})"
