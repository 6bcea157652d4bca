"""Transactions: publish and acknowledge at several replica sets, all or nothing (PROTOCOL E).

* `offered`: what `Client` has of all this.
* `settings`: the arguments of `Client.transaction`, checked; pure.
* `transaction`: what users call; `work` is its inside.
* `contents`: records and acknowledgements, gathered into statements; pure.
* `stages`: stages that end in a transaction; pure.
* `placing`: which partition a record goes to; pure.
* `driver_call`: the one standing call to a driver, for all transactions that it drives.
* `calls`: what a client has of all drivers: their calls, outcomes, listings.

What is delivered and published in one go, over and over, is in `consuming.steps`.
"""
