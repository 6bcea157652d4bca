"""What Spark's Python workers of a local session start with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_worker_knows_no_archive(spark: SparkSession) -> None:
    """Of each it would read the whole list again for every task."""
    from pyspark.sql import functions as F  # noqa: N812

    def archives(_):  # type: ignore[no-untyped-def]
        import sys

        known = sys.path_importer_cache.items()
        return ",".join(path for path, finder in known if "zip" in type(finder).__name__)

    def pyspark(_):  # type: ignore[no-untyped-def]
        import pyspark as imported

        return str(imported.__file__)

    found = spark.range(1).select(F.udf(archives)("id"), F.udf(pyspark)("id")).first()
    assert found is not None
    assert found[0] == ""
    assert ".zip" not in found[1]
