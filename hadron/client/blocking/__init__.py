"""The blocking client: the async one on an event loop in a thread of its own.

* `faces`: what users call: the async classes' methods, made of these by `generate`.
* `bases`: what the faces stand on, and what a later feature's does (`PartBase`).
* `outbox`, `intake`, `invocations`: what is behind producers, subscriptions and stage runs.
* `handling`: what is behind stages that the program runs itself, `workers` the threads for that.
* `transacting`: what is behind transactions, and steps of subscriptions.
* `endpoints`: what is behind calls with streams, and servers.
* `messages`: what is behind subscriptions to exchanges.
* `deliveries`: what deliveries need of who hands them out.
* `reader`: plain reads.
* `taking`: what threads take of the loop one after the other: nothing is lost between the two.
* `life`: opened at first use, closed once, by whatever thread; ends of programs, forks.
* `portal`: the loop and its thread, and how calls get there.
"""
