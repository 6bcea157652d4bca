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
        self._rest = b""
        """The beginning of a line."""
        self.seen = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Those that are whole now, without blanks around them; also the empty ones, so that they
        can be numbered. Raises `RecordTooLargeError` for one that is too long."""
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > self._max_line_bytes:
            raise RecordTooLargeError(
                f"line {self.seen + whole.count(newline) + 1} is longer than "
                f"{self._max_line_bytes} bytes",
                "one JSON value a line",
            )
        self._rest = rest
        return self._split(whole) if newline else []

    def finish(self) -> list[bytes]:
        """The last one, which has no end, if there is one."""
        rest, self._rest = self._rest, b""
        return self._split(rest) if rest.strip() else []

    def _split(self, text: bytes) -> list[bytes]:
        lines = [line.strip() for line in text.split(b"\n")]
        self.seen += len(lines)
        return lines
