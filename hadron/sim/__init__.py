"""A seeded world of whole nodes and clients in one process, and what judges it.

The history of what clients saw, and the checker, know nothing of the simulator: tests on real
processes use them too.
"""
