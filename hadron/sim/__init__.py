"""A seeded world of whole nodes and clients in one process, and what judges it.

    command    `python -m hadron.sim`
    mutants    planted bugs, and the hunt for them
    scenarios  the histories of the pages, played on purpose
    runs       the random ones, from a seed to an outcome
    actors     who is at work
    watch      who listens from inside, and complains
    faults     what goes wrong
    notes      what befalls a world, noted into a history
    world      nodes and clients of one replica set or several
    checks     the judge
    model      what each command does, a second time
    evidence   histories and files

The real node and client code runs here; time, randomness, network and disks (`hadron.fakes`) are
simulated behind the ports. Evidence and checks know nothing of the simulator: tests on real
processes use them too.
"""
