"""What is known at the end of a run, without asking any node.

    history       what clients did and saw, and what befell the nodes
    node_files    what stands in a node's file
    labels        streams that come and go under one name, told apart
    group_replay  where each record of a group was, played once more
    evidence      all of it, and what had been promised
    regions       several replica sets', taken apart
    schema_log    what a log makes of the schema

It knows nothing of the simulator: tests on real processes use it, too.
"""
