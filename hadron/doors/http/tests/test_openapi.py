"""The OpenAPI document: it is one, and the door keeps to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import hadron
from hadron.doors.http.openapi import document
from hadron.doors.http.table import OPERATIONS
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config

DOCUMENT = document(OPERATIONS)


def test_every_operation_is_in_it() -> None:
    found = {
        (method.upper(), path): its["operationId"]
        for path, methods in DOCUMENT["paths"].items()
        for method, its in methods.items()
    }
    assert len(found) == len(OPERATIONS)
    assert len(set(found.values())) == len(OPERATIONS)
    assert found["POST", "/v1/streams/{stream}"] == "publish"


def test_every_parameter_says_what_it_is_for() -> None:
    for methods in DOCUMENT["paths"].values():
        for its in methods.values():
            for each in its["parameters"]:
                if each["in"] != "path" and each["name"] != "namespace":
                    assert each.get("description"), (its["operationId"], each["name"])


def test_it_says_when_a_reference_leads_nowhere() -> None:
    known = set(DOCUMENT["components"]["schemas"])

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"].rpartition("/")[2]
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    assert set(references(DOCUMENT)) <= known


_DECLARED = """
kind: Exchange
name: prices
replica_set: local/p0
---
kind: Endpoint
name: quote
replica_set: local/p0
"""


@pytest.fixture
def door(tmp_path: Path) -> Iterator[str]:
    """The address of a node's door, in a process of its own. The endpoint and the exchange that are
    examples in its document are there; of a stream's groups polls would wait."""
    config = write_config(tmp_path / "cluster.yaml", 1, "os", http_ports=free_ports(1))
    with LocalCluster(tmp_path, config=config) as cluster:
        cluster.start_all()
        address = cluster.config.leader.http
        assert address is not None
        with hadron.connect_sync(cluster.url) as client:
            client.apply(_DECLARED)
            with client.serve("quote", lambda value: value):
                yield address


def test_the_document_is_served(door: str) -> None:
    with urlopen(f"http://{door}/openapi.json") as answer:
        assert json.load(answer) == DOCUMENT


def _chosen(option: str, *operations: str) -> list[str]:
    return [word for each in operations for word in (option, each)]


_CONFORMANCE = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
_CALL = ("call",)
_ENDLESS = ("events", "messages")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("selected", "checks"),
    [
        (_chosen("--exclude-operation-id", *_ENDLESS, *_CALL), ("not_a_server_error",)),
        # What is to be answered within a millisecond is not, and that is a 504.
        (_chosen("--include-operation-id", *_CALL), ()),
    ],
    ids=["all-but-calls", "calls"],
)
def test_whatever_it_allows_is_answered_as_it_says(
    door: str, tmp_path: Path, selected: list[str], checks: tuple[str, ...]
) -> None:
    """Schemathesis makes requests of it, good and bad: no defect, no status, type or body that is
    not in it. (What is followed has no end, and is left out; a schema that is applied by chance
    must not take the stream away.)"""
    # What is made up at random besides asks for polls, which wait.
    ask(door, tmp_path, "examples,coverage", *_checks(checks), *selected)


@pytest.mark.long
def test_a_few_operations_are_answered_as_it_says(door: str, tmp_path: Path) -> None:
    """The same of those that answer at once, a hundred requests in some seconds."""
    quick = _chosen("--include-operation-id", "publish", "endpoint", "exchange", "send", "status")
    ask(door, tmp_path, "examples,coverage", *_checks(("not_a_server_error",)), *quick)


def _checks(more: tuple[str, ...]) -> tuple[str, str]:
    return "--checks", ",".join((*_CONFORMANCE, *more))


def ask(door: str, tmp_path: Path, phases: str, *options: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"http://{door}/openapi.json"),
            *options,
            *("--phases", phases),
            *("--seed", "1", "--request-timeout", "70", "--no-color"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        # What it keeps for the next time is of no use.
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
