"""Bulk writers of many tasks: they stage batches, and one transaction publishes them.

* `sink`: what users call.
* `offered`: what `Client` has of sinks.
"""
