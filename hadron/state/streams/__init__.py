"""Streams: batches in the partitions that live here, who wrote them, their keys, what is kept."""
