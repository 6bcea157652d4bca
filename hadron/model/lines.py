"""Lines of a text that comes in pieces, each within a bound. Pure."""

from __future__ import annotations

from hadron.model.errors import RecordTooLargeError


class Lines:
    """NDJSON, mostly: a value a line; empty ones mean nothing.

    Attributes:
        seen: how many lines were handed out.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest: list[bytes] = []
        """The beginning of a line, in pieces: who sends it byte by byte has it copied once."""
        self._rest_bytes = 0
        self.seen = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Those that are whole now, without blanks around them; also the empty ones, so that they
        can be numbered. Raises `RecordTooLargeError` for one that is too long."""
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            whole = b"".join((*self._rest, whole))
            self._rest, self._rest_bytes = [], 0
        self._rest_bytes += len(rest)
        if self._rest_bytes > self._max_line_bytes:
            before = whole.count(b"\n") + 1 if newline else 0
            raise RecordTooLargeError(
                f"line {self.seen + before + 1} is longer than {self._max_line_bytes} bytes",
                "one JSON value a line",
            )
        if rest:
            self._rest.append(rest)
        return self._split(whole) if newline else []

    def finish(self) -> list[bytes]:
        """The last one, which has no end, if there is one."""
        rest, self._rest, self._rest_bytes = b"".join(self._rest), [], 0
        return self._split(rest) if rest.strip() else []

    def _split(self, text: bytes) -> list[bytes]:
        lines = [line.strip() for line in text.split(b"\n")]
        self.seen += len(lines)
        return lines
