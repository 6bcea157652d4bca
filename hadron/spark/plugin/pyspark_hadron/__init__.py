"""What Spark looks for when it meets `.format("hadron")`.

Spark imports every top-level module called `pyspark_…` and registers its `DefaultSource`, so no
session has to be configured. The source itself lives in `hadron.spark.source`.
"""

from hadron.spark.source.readers import HadronDataSource as DefaultSource

__all__ = ["DefaultSource"]
