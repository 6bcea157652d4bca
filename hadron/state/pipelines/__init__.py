"""Pipelines: their definitions, instances and stages, what they consume, wait for and publish."""
