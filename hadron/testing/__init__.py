"""Tools for tests: a network in memory, and many nodes in one process over it."""
