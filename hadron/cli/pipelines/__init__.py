"""What commands show of pipelines, and run of them: stages on Spark, streaming queries."""
