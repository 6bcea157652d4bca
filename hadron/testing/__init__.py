"""Worlds around a node: local clusters of real processes, for tests, the demo and the bench."""
