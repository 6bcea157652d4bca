"""Publishing, from a value to the receipt of a record that is in the log.

* `producer`: what users call.
* `settings`: the arguments of `Client.producer`, checked.
* `assembly`: from settings to a producer whose parts are wired together.
* `following`: what becomes of it when its stream is changed or deleted.
* `naming`: its name, claimed at each partition.
* `publisher`: the inside of a producer: takes records, and sees each to one outcome.
* `new_records`: from what a user passes to a record that is sure to encode.
* `partitioner`: which partition a record goes to.
* `failover`: what becomes of records whose partition is away.
* `router`: the partitions of a producer, and which one takes over from which.
* `buffer`: the room that they share.
* `accumulator`: one partition's batches and their sequences, pure.
* `outgoing_batch`: one of them, from its first record to its outcome.
* `sender`: sends them to the partition's leader.
* `bulk`: `send_many`.
* `json_lines`: NDJSON, of which whole pieces become batches.
* `once`: records that are sent once under a key, whoever sends them.
* `standing`: the producers that a client keeps for its own `send`.
"""
