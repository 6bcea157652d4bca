"""Stages with `engine: handler`, which the program runs itself.

* `invocation`: one instance's turn at a stage: what came with it, and how it ends.
* `micro_batches`: what its leader has sent.
* `absences`: invocations that wait for records whose leader is away.
* `records`: the records that it is about: they came with it, or are fetched.
* `ends`: what became of invocations, gathered into one request for many.
* `lateness`: what has taken longer than its stage may take.
* `stage`: the loop over them.
* `methods`: what `Client` has of this.
"""
