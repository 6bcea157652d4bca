"""Consumer groups on the leader: who gets which records, and what happens when they go away.

`machine` decides, without I/O; `driver` reads batches, sends deliveries and logs progress.
"""
