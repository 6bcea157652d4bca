"""Bulk writers of many tasks: they stage batches, and one transaction publishes them."""
