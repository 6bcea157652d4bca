"""Doors: other ways to a node than its own frames, for programs that speak something else."""
