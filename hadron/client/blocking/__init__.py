"""The blocking client: the async one on an event loop in a thread of its own.

* `faces`: what users call: the async classes' methods, made of these by `generate`.
* `bases`: what the faces stand on, and what a later feature's does (`PartBase`).
* `outbox`, `intake`, `invocations`: what is behind producers, subscriptions and stage runs.
* `deliveries`: what deliveries need of who hands them out.
* `reader`: plain reads.
* `life`: opened at first use, closed once, by whatever thread; ends of programs, forks.
* `portal`: the loop and its thread, and how calls get there.
"""
