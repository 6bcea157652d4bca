"""Transactions: publish and acknowledge at several replica sets, all or nothing (PROTOCOL E).

* `transaction`: what users call; `work` is its inside.
* `contents`: records and acknowledgements, gathered into statements; pure.
* `placing`: which partition a record goes to; pure.
* `driver_call`: the one standing call to a driver, for all transactions that it drives.
* `calls`: what a client has of all drivers: their calls, outcomes, listings.

What is delivered and published in one go, over and over, is in `consuming.steps`.
"""
