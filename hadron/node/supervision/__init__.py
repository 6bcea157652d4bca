"""Replica sets as processes on this machine: started, watched, stopped, by process id.

For `hadron cluster`, the demo, the measurements and the tests of real processes.
"""
