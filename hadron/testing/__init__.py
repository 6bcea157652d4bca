"""Tools for tests: many nodes in one process, and a proxy that breaks connections."""
