"""Where a run is listened to: functions of the product that are wrapped, by what they tell of.

    nodes      nodes as they open their disks, follow, lead, stop, and say how they are
    tables     what tables are read, changed and shown by
    commands   commands on their way: submitted, logged, committed, told
    groups     consumer groups on their leaders, and their members
    producers  what leaves producers, and what they are told
    schema     changes of the schema as their leader judges them
    logs       promises, logs that grow and are trimmed, repairs, copies and restores
    disks      what happens to disks, and what a node has left in its budget
    wires      questions and answers between nodes, and to clients

Each says by `wrappers` what it hears; who judges stands in `known`.
"""
