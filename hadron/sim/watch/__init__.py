"""Watching a run from inside: rules of PROTOCOL that are broken long before a record is lost.

    hub        listens, for the length of a run
    hearing    what is heard: nodes as they open their disks, questions and answers, promises, acks
    known      what is known of nodes, and everybody who judges
    views      each node, and each question that it was asked
    marks      what each ballot has really reached
    answers    A2: nothing leaves before what it was derived from is committed
    ballots    A1, A3, A7, B1 to B5: promises, acks, the watermark, the log's length, torn logs
    flushes    F2: write-ahead logs that begin anew
    entries    A4, B7, B8, D1, D2, E3: what commands may do to tables, and when they say that it was
    instances  E3: live instances have something left to do
    serving    D2: what leaders of groups do in time and in turn, and what members hand out
    confirming D2: what members are told of their acknowledgements
    places     D2: where each record of a group is
    branches   B3, B6: what was committed, and what is called so
    repairs    A6: what nodes put back into their logs
    copies     B6: what is in copies, and in what is installed
    meanings   D3: what ids and indexes of the schema stand for, and which objects there are
    judged     D3: changes of the schema, and what they were judged against
    records    D4, D5: what leaders say of records
    reads_on   D4: readers that go on
    in_steps   K13: members that commit one step after the other
    leases     E3: what is at runners, and who has ended them
    given      E3: what runners and people are told of pipelines
    awaited    E3: records that stages wait for, behind those that they are of
    cursors    D4, E3: pipelines that go on in another set's log
    sending    D1: what leaves producers
    feeds      A3: what members lack is sent
    tallies    W2: what is counted is what is there
    leftovers  W9: what nodes at rest still hold of what is over

What each entry does to the tables is held against a model of them (`hadron.sim.model`).

The histories of clients and the files of nodes show what became of a broken rule; most of the time
nothing does, because no disk was lost in that very moment. Here each message is held against what
the whole world knows. The product knows nothing of it: functions are wrapped for the length of a
run, and what a node that has crashed still does is not heard.
"""

from hadron.sim.watch.hub import Watcher, watching

__all__ = ["Watcher", "watching"]
