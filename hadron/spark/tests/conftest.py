"""One Spark session for all tests of this room: a JVM takes seconds to start."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hadron.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session(app_name="tests", config={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()


@pytest.fixture(autouse=True, scope="session")
def _environment() -> Iterator[None]:
    """A session changes the environment of its process, as it must; other rooms' tests see none."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _foreign_warnings() -> Iterator[None]:
    """py4j closes its sockets when they are collected, which Python warns about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ResourceWarning)
        yield
