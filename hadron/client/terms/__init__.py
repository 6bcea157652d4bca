"""What every call of a client has in common: what a program writes, opens and gets.

* `arguments`: names, numbers, durations and instants as a program may write them, checked.
* `opening`: what is entered before it is used, and what is told to who forgets that.
* `ending`: how what is open is closed.
* `cancelling`: whether a cancellation is meant for who is cancelled.
* `results`: what the calls answer, plain frozen values.
"""
