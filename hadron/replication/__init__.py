"""Between the nodes of a replica set: handshake, ballots, progress, catch-up (PROTOCOL A and B)."""
