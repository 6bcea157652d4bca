"""The ports without a machine: time, wires and disks that one seed decides.

    scheduling   in which order tasks run, and what time it is
    alarms       what a task waits for that others may put forward
    clocks       clocks and random numbers of hosts
    trace        what happened, in order: a hash over it, and a log for people
    network      hosts, and wires that delay, hold back, cut and break
    connections  two ends, and a pipe of delayed bytes each way
    frame_text   frames on a wire, for people
    disk         one per host, and what can go wrong with it
    volume       one life of a disk, from a start to a crash
    files        what a power loss leaves of a file
    vfs          SQLite's way to them
    damage       damage that no page's checksum tells of

They keep the contracts of `hadron.model.ports` as the real ones do, and know of no node.
"""
