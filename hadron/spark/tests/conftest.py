"""One Spark session for all tests of this room: a JVM takes seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hadron.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """A local session. It changes the environment of its process, as it must, until it stops."""
    before = dict(os.environ)
    # One session has all tests, and one of them makes a row of a hundred megabytes.
    settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"}
    made = session(app_name="tests", config=settings)
    try:
        yield made
    finally:
        made.stop()
        os.environ.clear()
        os.environ.update(before)
