"""The blocking face of `hadron.client.endpoints.stream`, made of it by `make faces`."""

from __future__ import annotations

from typing import Any

from hadron.client.blocking.endpoints import CallStreamBase


class SyncCallStream(CallStreamBase):
    """A call that is under way. Made by `SyncClient.call_stream`; used in a `with` block, or
    without one and closed with `close`.

    `send` what goes in, and `end` it; take the answer with `for value in call`, or with
    `result` where there is one value. Leaving the block cancels what is not over.
    """

    def send(self, value: Any) -> None:
        """One value of the input; waits while the server has not taken what was sent before.

        Raises what ended the call, and `RequestError` once the input was ended, or the answer is
        complete: then nobody takes it any more.
        """
        self._lazy.get().send(value)

    def end(self) -> None:
        """Say that nothing more is sent."""
        self._lazy.get().end()

    def result(self) -> Any:
        """End the input, and return the one value of the answer. Raises `RequestError` where there
        are none, or several.
        """
        return self._lazy.get().result()
