"""What each command of the log does, a second time: in dicts and lists, as the pages say it.

    machine     an entry, and which part of the model it is for
    streams     partitions, batches, producers, what retention drops (D1, D2, B8)
    groups      progress, attempts, dead letters, resets (D2, G8)
    pipelines   cursors, instances, stages and their attempts (E3, P1, P2)
    retries     failed instances that run again (P1, P6)
    schema      objects, tombstones, adoption, ballots, what deleted objects leave (D3, R, B5)
    histories   what nodes have applied, entry by entry, held against the model at the end of a run
    asked       questions that are answered from tables; those of pipelines in asked_pipelines

It shares nothing with `hadron.state` but the structs of commands, the types of errors and a few
bounds. So it is slow and short: offsets that are acknowledged are a set, counts are counted, no
decision is remembered that can be made again. A defect of an `apply` function that every node has
is in every node's tables, and breaks no promise until much later, or never; here it shows at the
first entry whose result, or at the next look at the tables whose rows are not the model's.
"""
