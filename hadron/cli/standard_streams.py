"""Standard input, output and error as a command finds them: closed, full, a pipe without a reader.

A module of its own because the interpreter, click and every command meet them. What is closed is
opened on the null device before anything else is: else the first file or connection that is opened
gets that number, and whatever is printed goes into it.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from typing import BinaryIO, Final, TextIO, cast

_OUTPUTS: Final = {1: "stdout", 2: "stderr"}


def open_closed() -> None:
    """Open those that are closed. What is printed goes nowhere, as into /dev/null; a closed stdin
    stays None for Python, so that a command that wants it can say that it is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is the one that is given: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in _OUTPUTS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", errors="replace", closefd=False))


def is_stdin_closed() -> bool:
    """Whether this was started with `<&-`."""
    # typeshed knows no None here.
    return cast(TextIO | None, sys.stdin) is None


def open_stdin() -> TextIO:
    """stdin. Raises `RequestError` when it is closed."""
    from hadron.model.errors import RequestError

    if is_stdin_closed():
        raise RequestError("stdin is closed", "name a file, or pipe into it")
    return sys.stdin


def read_stdin() -> str:
    """All of stdin, which is UTF-8 whatever the locale says. Raises `RequestError` when it is not,
    is closed, or has more than a message could."""
    from hadron.model.errors import RequestError
    from hadron.model.limits import MAX_MESSAGE_BYTES

    data = open_stdin().buffer.read(MAX_MESSAGE_BYTES + 1)
    if len(data) > MAX_MESSAGE_BYTES:
        raise RequestError(f"stdin has more than {MAX_MESSAGE_BYTES} bytes", "give it in parts")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RequestError(
            f"stdin, line {line}: byte 0x{data[error.start]:02x}, which is not UTF-8",
            "convert it, as with `iconv -f LATIN1 -t UTF-8`",
        ) from error


def open_stdin_apart() -> BinaryIO:
    """The same as bytes, for a thread that may be left alone with it: the interpreter closes its
    own stdin at its end, and aborts where a thread is still reading that."""
    stdin = open_stdin()
    try:
        return open(stdin.fileno(), "rb", closefd=False)
    except OSError:
        # A stream of a test has no number.
        return stdin.buffer


class Stdout:
    """stdout, for what counts as seen once it is printed.

    Written past the interpreter's own buffer, whose lock a thread that is left alone with a write
    would keep: whoever flushes at the command's end would wait for it.
    """

    def __init__(self) -> None:
        """Raises `RequestError` when it is closed: what goes nowhere was seen by nobody."""
        from hadron.model.errors import RequestError

        # What the interpreter found; `open_closed` has set `sys.stdout` since.
        if cast(TextIO | None, sys.__stdout__) is None:
            raise RequestError("stdout is closed", "print to /dev/null what nobody is to see")
        self._number: int | None = None
        self._is_pipe = self._may_wait = False
        # A stream of a test has no number.
        with contextlib.suppress(OSError):
            self._number = sys.stdout.fileno()
            mode = os.fstat(self._number).st_mode
            self._is_pipe = stat.S_ISFIFO(mode)
            self._may_wait = self._is_pipe or stat.S_ISSOCK(mode) or os.isatty(self._number)

    def write(self, data: bytes) -> None:
        """All of it. Raises `BrokenPipeError` where nobody reads, else `HadronError`."""
        if self._number is None:
            sys.stdout.buffer.write(data)
            return
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._number, left) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            from hadron.model.errors import HadronError

            raise HadronError(f"stdout cannot be written: {error.strerror}") from error

    async def write_apart(self, data: bytes) -> None:
        """The same, while the event loop goes on however slow the reader is. In a thread, which is
        left alone with it when this is cancelled; one call at a time."""
        if self._takes_at_once(len(data)):
            self.write(data)
            return
        import trio

        await trio.to_thread.run_sync(self.write, data, abandon_on_cancel=True)

    def _takes_at_once(self, count: int) -> bool:
        """Whether nobody has to be waited for: a thread would cost more than a short write does."""
        if self._number is None or not self._may_wait:
            return True
        if not self._is_pipe or count > select.PIPE_BUF:
            return False
        poll = select.poll()
        poll.register(self._number, select.POLLOUT)
        return bool(poll.poll(0))


async def watch_reader() -> None:
    """Return, once there is nothing to watch any more; raises `BrokenPipeError` as soon as the
    reader of stdout's pipe has gone away, which a write would find out with the next record only.
    """
    import trio

    try:
        number = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(number).st_mode):
            return
        # An end for writing is never readable: what wakes is that it is broken.
        await trio.lowlevel.wait_readable(number)
    except OSError:
        # A stream of a test, or a system that cannot watch this.
        return
    poll = select.poll()
    poll.register(number, 0)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError


def let_go() -> None:
    """Let what cannot be written go nowhere: the interpreter flushes both once more on its way out,
    and would end with a status and words of its own."""
    for name in _OUTPUTS.values():
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OSError:
            # A stream of a test has no number.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                stream.flush()
        except ValueError:
            # Closed by its user: nothing is left in it.
            continue
