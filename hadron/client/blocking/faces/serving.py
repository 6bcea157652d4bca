"""The blocking face of `hadron.client.endpoints.serving`, made of it by `make faces`."""

from __future__ import annotations

from hadron.client.blocking.endpoints import ServingBase


class SyncServing(ServingBase):
    """A server that is attached. Made by `SyncClient.serve`; used in a `with` block, or without one
    from `wait` on, and closed with `close`, with its client, or when the program ends.

    Calls are run while the block lasts; `wait` is for a program that does nothing else. Leaving it,
    or `drain`, takes no more calls, and waits for those that are under way.
    """

    def wait(self) -> None:
        """Until it is closed, or has drained. Raises what ended it: the endpoint was deleted, for
        example.
        """
        self._lazy.get().wait()

    def drain(self) -> None:
        """Take no more calls, and wait for those that are under way, and until their answers are
        sent, for `drain_s` at most since that was first asked for; then `wait` returns. Calls that
        were on their way here go to other servers.
        """
        self._lazy.get().drain()
