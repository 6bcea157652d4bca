"""What is behind a blocking stage run: micro-batches cross threads one by one."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.portal import Portal
from hadron.client.blocking.taking import Taking
from hadron.client.pipelines.stage_run import StageRun
from hadron.client.terms.ending import Ending
from hadron.model.errors import ClosedError, ForkedError
from hadron.wire.messages import pipelines_pb2


class Invocations:
    """What is open of a blocking stage run."""

    def __init__(self, portal: Portal, run: StageRun) -> None:
        self._portal = portal
        self._run = run
        self._taking = Taking(portal, lambda: anext(run, None))

    def grant(self, count: int) -> None:
        self._portal.call(self._run.grant, count)

    def begin(self, invocations: pipelines_pb2.Invocations, code_version: str) -> None:
        self._portal.call(self._run.begin, invocations, code_version)

    def next(self) -> pipelines_pb2.Invocations | None:
        try:
            return self._taking.take()
        except ForkedError:
            raise
        except ClosedError:
            return None

    def __str__(self) -> str:
        return str(self._run)

    def finish(self, _ending: Ending) -> None:
        with suppress(ClosedError):
            self._portal.call(self._run.__aexit__, None, None, None)

    def forked(self) -> None:
        """In a child process: the calls refuse by themselves."""


class StageRunBase(OpenedBase[Invocations]):
    """Ready invocations of a pipeline. Made by `SyncClient.run_stages`; used in a `with` block, or
    without one and closed with `close`, with its client, or when the program ends. The loop ends
    when the run or the client is closed, by whatever thread."""

    _core = Invocations

    def close(self) -> None:
        """Take no more; what waits here goes to other runners."""
        self._lazy.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pipelines_pb2.Invocations:
        run = None if self._lazy.is_closed else self._lazy.get()
        invocations = run.next() if run is not None else None
        if invocations is None:
            raise StopIteration
        return invocations
