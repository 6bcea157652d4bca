"""How what is open is closed: producers, subscriptions, clients."""

from __future__ import annotations

import msgspec


class Ending(msgspec.Struct, frozen=True):
    """How something is closed.

    Attributes:
        timeout_s: what has no outcome by then is given up; None is the delivery timeout.
        waits: False gives everything up at once.
        logs: failures are logged and not raised, where something else is, or nobody hears them.
        by_error: its block has failed: no more is done for others.
    """

    timeout_s: float | None = None
    waits: bool = True
    logs: bool = False
    by_error: bool = False

    def later(self, by_s: float) -> Ending:
        """The same, so many seconds after it has begun."""
        if self.timeout_s is None:
            return self
        return msgspec.structs.replace(self, timeout_s=max(0.0, self.timeout_s - by_s))


def after_block(error: BaseException | None) -> Ending:
    """How a block ends that `error` ends, if that is not None: one that was cancelled, or is left
    by Ctrl-C, waits for nothing."""
    waits, is_error = error is None or isinstance(error, Exception), error is not None
    return Ending(waits=waits, logs=is_error, by_error=is_error)
