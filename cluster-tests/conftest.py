"""Real processes, real files, on loopback; every test gets a cluster of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

import pytest
from load import ALONE, PROGRESS_S, PROMOTED_WITHIN_S, WORKERS
from report import Row, summary, table

from hadron.node.supervision.cluster import LocalCluster
from hadron.testing.cluster import FaultyCluster

_ROW: Final = "row"
"""The user property by which a row reaches the process that prints the table: tests may run in
several, and that one runs none of them."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultyCluster]:
    """Three nodes; the load's clients can be cut off from each of them."""
    with FaultyCluster(tmp_path, nodes=3, clients=(*WORKERS, ALONE)) as running:
        yield running


@pytest.fixture
def unsynced(tmp_path: Path) -> Iterator[FaultyCluster]:
    """Three nodes that do not flush what they acknowledge."""
    clients = (*WORKERS, ALONE)
    with FaultyCluster(tmp_path, nodes=3, durability="os", clients=clients) as running:
        yield running


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes with nothing between them and their clients."""
    with LocalCluster(tmp_path, nodes=3) as running:
        yield running


@pytest.fixture
def five(tmp_path: Path) -> Iterator[FaultyCluster]:
    """Five nodes."""
    with FaultyCluster(tmp_path, nodes=5, clients=(*WORKERS, ALONE)) as running:
        yield running


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """The test's line in the table at the end of the run."""
    row = Row(request.node.name)
    yield row
    request.node.user_properties.append((_ROW, asdict(row)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests measured."""
    rows = [
        Row(**cast(dict[str, Any], value))
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for name, value in report.user_properties
        if name == _ROW
    ]
    if rows:
        rows.sort(key=lambda row: row.test)
        terminalreporter.section("faults, and what users felt")
        terminalreporter.write_line(table(rows))
        terminalreporter.write_line(summary(rows, PROGRESS_S, PROMOTED_WITHIN_S))
