"""A seeded world of whole nodes and clients in one process, and what judges it.

The real node and client code runs here; time, randomness, network and disks are simulated behind
the ports. The history of what clients saw, and the checker, know nothing of the
simulator: tests on real processes use them too.
"""
