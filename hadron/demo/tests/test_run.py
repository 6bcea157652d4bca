"""The demo's plot, without Spark and without processes."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from hadron.cli.commands import demo
from hadron.demo import run
from hadron.demo.run import DemoError, judge
from hadron.demo.screen import Screen
from hadron.demo.table import DelayRow, differences, expected_delays
from hadron.demo.tests.node_files import write_node_file
from hadron.model.errors import ConfigurationError, ConnectionLostError
from hadron.node.supervision.processes import ClusterError


@pytest.fixture
def screen() -> Screen:
    return Screen(Console(file=io.StringIO(), width=200))


def lose_a_batch(rows: list[DelayRow]) -> list[DelayRow]:
    return [replace(rows[0], flights=rows[0].flights - 1), *rows[1:]]


def lose_a_row(rows: list[DelayRow]) -> list[DelayRow]:
    return rows[1:]


def double_a_row(rows: list[DelayRow]) -> list[DelayRow]:
    return [rows[0], *rows]


def test_the_table_in_plain_python() -> None:
    rows = expected_delays()
    assert sum(row.flights for row in rows) == 27_004
    assert sum(row.cancelled for row in rows) == 521
    assert sum(row.late for row in rows) == 3_849
    assert sum(row.late_in_bad_weather for row in rows) == 1_242
    assert len({(row.origin, row.carrier) for row in rows}) == len(rows)
    assert differences(rows) == []


@pytest.mark.parametrize("change", [lose_a_batch, lose_a_row, double_a_row])
def test_a_table_that_is_wrong_is_told(change: Any) -> None:
    assert differences(change(list(expected_delays()))) != []


@pytest.mark.long
def test_a_wrong_table_is_not_verified_however_sound_the_files_are(
    tmp_path: Path, screen: Screen
) -> None:
    """It was printed with "verified" beneath: nobody had looked at what Spark read."""
    path = tmp_path / "hadron.db"
    write_node_file(path)
    status = SimpleNamespace(last_lsn=20)
    cluster: Any = SimpleNamespace(
        leader="n1", names=["n1"], wait_for=lambda *_: status, database=lambda _: path
    )
    rows = list(expected_delays())
    assert judge(cluster, rows, screen).ok
    report = judge(cluster, lose_a_batch(rows), screen)
    assert len(report.problems) == 1
    assert report.problems[0].startswith("the table: it has DelayRow(origin='EWR', carrier='9E', ")
    assert report.summary() == "NOT verified: 1 problem found"


@pytest.mark.parametrize("dead", ["n1", "n2"])
def test_a_node_that_ends_by_itself_is_noticed_at_once(screen: Screen, dead: str) -> None:
    """Whoever looked at the victim only waited two minutes for the leader."""
    asked = 0

    def pid(name: str) -> int:
        if name == dead:
            raise ClusterError(f"node {name} is not running")
        return 1

    def progress(_: str) -> list[Any]:
        nonlocal asked
        asked += 1
        assert asked < 3, "nobody has noticed"
        raise ConnectionLostError("n1 is away")

    cluster: Any = SimpleNamespace(names=["n1", "n2", "n3"], leader="n1", pid=pid)
    client: Any = SimpleNamespace(pipeline_progress=progress)
    with pytest.raises(ClusterError, match=f"node {dead} is not running"):
        run._Play(cluster, client, "n3", screen, Future()).watch()


def test_a_spark_that_is_still_starting_is_gone_when_the_demo_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java lived on for seconds, and its launcher's files for ever."""
    mark = "a-java-of-test-run"
    monkeypatch.setattr(run, "_OF_SPARK", mark)
    code = "import time; print('up', flush=True); time.sleep(600)"
    starting: Future[Any] = Future()
    with subprocess.Popen([sys.executable, "-c", code, mark], stdout=subprocess.PIPE) as java:
        assert java.stdout is not None
        assert java.stdout.readline() == b"up\n"

        def launch() -> None:
            java.wait()
            starting.set_exception(OSError("Java is gone"))

        launcher = threading.Thread(target=launch)
        launcher.start()
        try:
            run._stop_spark(starting)
            assert starting.done()
        finally:
            java.kill()
            launcher.join()


def test_without_room_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes wait for room, and the demo for them."""
    free = SimpleNamespace(free=7 << 20)
    monkeypatch.setattr("hadron.spark.extra.check_extra", lambda: None)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    monkeypatch.setattr(run, "run", lambda *_: pytest.fail("it was started"))
    result = CliRunner().invoke(demo.command, [], standalone_mode=False)
    assert isinstance(result.exception, ConfigurationError), result.exception
    assert result.exception.message.startswith(f"{tempfile.gettempdir()} has 7 MiB left, a demo")
    assert "TMPDIR" in result.exception.hint


def test_a_directory_that_is_none_is_not_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hadron.spark.extra.check_extra", lambda: None)
    monkeypatch.setattr(run, "run", lambda *_: pytest.fail("it was started"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    result = CliRunner().invoke(demo.command, [], standalone_mode=False)
    assert isinstance(result.exception, ConfigurationError), result.exception
    assert result.exception.message.startswith(f"TMPDIR={tmp_path}/gone is no directory")


def test_who_gets_on_with_its_stages_has_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of many thousand pass a stage before the first instance is done."""
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 100)
    )
    monkeypatch.setattr(run, "time", clock)
    said = [Stages(0, [0, 0]), Stages(0, [5, 0]), Stages(0, [9, 0]), Stages(0, [9, 0])]
    waits = iter([*said, *[said[-1]] * 9])
    client = SimpleNamespace(pipeline_progress=lambda _: [next(waits)])
    cluster = SimpleNamespace(names=[], leader="n1")
    play = run._Play(
        cast(Any, cluster), cast(Any, client), "n3", Screen(Console(file=io.StringIO())), Future()
    )
    with pytest.raises(DemoError, match="stopped at 0 of"):
        play.watch()
    assert now[0] == 400


class Stages(SimpleNamespace):
    """A pipeline's progress, as far as it is looked at."""

    def __init__(self, done: int, stages: list[int]) -> None:
        named = [SimpleNamespace(name=f"s{at}", done=count) for at, count in enumerate(stages)]
        super().__init__(done=done, failed=0, stages=named)
