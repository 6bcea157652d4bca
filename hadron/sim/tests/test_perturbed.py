"""The trace notices everything: one send, one write or one sync more, and its hash is another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hadron.fakes.connections import SimTransport
from hadron.fakes.files import SimFile
from hadron.fakes.frame_text import without_checksums
from hadron.fakes.trace import Trace
from hadron.fakes.volume import Volume
from hadron.sim.runs.run import run_seed
from hadron.sim.tests.scenario import PublishUnderFaults
from hadron.wire import frames
from hadron.wire.frames import Kind

SEED = 5
NTH = 50


def trace_hash() -> str:
    return run_seed(SEED, PublishUnderFaults(records=20)).trace_hash


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return trace_hash()


def at_the_nth(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, disturb: Callable[..., Any]
) -> list[int]:
    """Have `disturb(original, *args)` do the n-th call of a method; returns the count of calls."""
    original = getattr(owner, name)
    calls = [0]

    def method(*args: Any) -> Any:
        calls[0] += 1
        return disturb(original, *args) if calls[0] == NTH else original(*args)

    monkeypatch.setattr(owner, name, method)
    return calls


def test_nothing_disturbed(monkeypatch: pytest.MonkeyPatch, undisturbed: str) -> None:
    calls = at_the_nth(monkeypatch, SimTransport, "send_some", lambda send, *args: send(*args))
    assert trace_hash() == undisturbed
    assert calls[0] > NTH


@pytest.mark.long
def test_one_send_takes_two_turns(monkeypatch: pytest.MonkeyPatch, undisturbed: str) -> None:
    def disturb(send: Callable[..., int], transport: SimTransport, chunks: Any) -> int:
        whole = b"".join(chunks)
        return send(transport, [whole[:1]]) + send(transport, [whole[1:]])

    at_the_nth(monkeypatch, SimTransport, "send_some", disturb)
    assert trace_hash() != undisturbed


def test_one_byte_of_one_write_is_another(
    monkeypatch: pytest.MonkeyPatch, undisturbed: str
) -> None:
    def disturb(
        written: Callable[..., None],
        volume: Volume,
        path: str,
        file: SimFile,
        offset: int,
        data: bytes,
    ) -> None:
        written(volume, path, file, offset, bytes([data[0] ^ 1]) + data[1:])

    calls = at_the_nth(monkeypatch, Volume, "written", disturb)
    assert trace_hash() != undisturbed
    assert calls[0] > NTH


def test_one_sync_happens_twice(monkeypatch: pytest.MonkeyPatch, undisturbed: str) -> None:
    def disturb(synced: Callable[..., None], *args: Any) -> None:
        synced(*args)
        synced(*args)

    calls = at_the_nth(monkeypatch, Volume, "synced", disturb)
    assert trace_hash() != undisturbed
    assert calls[0] > NTH


def test_the_hash_covers_kind_place_number_bytes_and_time() -> None:
    now_s = [0.0]
    seen = set()
    for kind, where, number, data, at_s in (
        (1, "a", 0, b"", 0.0),
        (2, "a", 0, b"", 0.0),
        (1, "b", 0, b"", 0.0),
        (1, "a", 1, b"", 0.0),
        (1, "a", 0, b"x", 0.0),
        (1, "a", 0, b"", 1.0),
    ):
        trace = Trace(lambda: now_s[0])
        now_s[0] = at_s
        trace.note(kind, where, number, data)
        seen.add(trace.hexdigest())
    assert len(seen) == 6


def test_a_hidden_name_inside_a_frame_does_not_matter_and_another_byte_does() -> None:
    """The frame's checksum covers the name as well."""

    def frames_hash(name: str, rest: bytes) -> str:
        trace = Trace()
        trace.hide(f"/tmp/{name}")
        ahead = frames.encode(Kind.PING, 0)
        error = frames.encode(Kind.ERROR, 7, f"the disk under /tmp/{name} failed".encode() + rest)
        data = b"".join([*map(bytes, ahead), *map(bytes, error)])
        assert trace.is_hiding(data)
        trace.note(1, "n1", 0, without_checksums(data))
        return trace.hexdigest()

    assert frames_hash("abc", b"") == frames_hash("xyz", b"")
    assert frames_hash("abc", b"") != frames_hash("abc", b"!")


def test_a_hidden_name_does_not_matter() -> None:
    hashes = set()
    for name in ("abc", "xyz"):
        trace = Trace()
        trace.hide(f"/tmp/{name}")
        trace.note(1, "n1", 0, f"at /tmp/{name}/f".encode())
        hashes.add(trace.hexdigest())
    assert len(hashes) == 1


def test_the_first_world_of_a_process_draws_what_later_ones_draw() -> None:
    """Loading the checksum extension draws some of SQLite's random numbers, once per process."""
    code = (
        "import apsw\n"
        "from hadron.fakes import vfs\n"
        "from hadron.storage.checksums import with_checksums\n"
        "def draw():\n"
        "    vfs.install(1)\n"
        "    with_checksums('unix')\n"
        "    return apsw.randomness(8)\n"
        "print(draw() == draw())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
