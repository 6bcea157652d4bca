"""What is measured beside somebody is not, once they have ended."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from hadron.bench import frozen
from hadron.bench.beside import beside, started
from hadron.bench.frozen import frozen_member
from hadron.model.errors import HadronError

_STAYS = "import os, time; os.write(1, b'begun\\n'); time.sleep(600)"
_GOES = "import os; os.write(1, b'joined\\n'); os._exit(3)"


async def test_who_ends_before_the_block_does_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "stays.py").write_text(_STAYS)
    noise = partial(beside, "stays", (), begun=b"begun\n", trouble="the noise is gone")
    async with noise():
        pass

    async def lose_it() -> None:
        async with noise() as pid:
            os.kill(pid, signal.SIGKILL)
            await anyio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(HadronError, match="the noise is gone: it ended with status -9"):
        await lose_it()


async def test_what_was_wrong_in_the_block_is_told_first() -> None:
    with pytest.raises(ValueError, match="mine"), started(["-c", ""], "gone"):
        raise ValueError("mine")


async def test_a_member_that_is_gone_has_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "goes.py").write_text(_GOES)

    @asynccontextmanager
    async def gone(_module: str, _arguments: object, **options: str) -> AsyncIterator[int]:
        async with beside("goes", (), begun=b"joined\n", trouble=options["trouble"]) as pid:
            # Before it is signalled: else it might stop before it ends.
            await anyio.to_thread.run_sync(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            yield pid

    monkeypatch.setattr(frozen, "beside", gone)
    with pytest.raises(HadronError, match="did not join group 'g', or did not stay in it"):
        async with frozen_member("", "s", "g"):
            raise AssertionError("it is frozen")
