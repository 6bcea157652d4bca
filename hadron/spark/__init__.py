"""Spark: the connector (`spark.read.format("hadron")`), the stage runner, and finding a Java.

Nothing is imported here: Spark's workers load the connector alone, and a stage runner must not
pay for streaming. Only the client and what lies below it may be imported by this room.
"""
