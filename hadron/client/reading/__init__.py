"""Plain reads, without a group.

* `reader`: records or batches in order, over all partitions of a stream.
* `prefetch`: one partition's answers, fetched ahead.
* `slices`: parts of a record batch, as batches of their own.
* `calls`: offsets, single fetches, and from the arguments of `Client.read` to a reader.
* `methods`: what `Client` has of all this.
"""
