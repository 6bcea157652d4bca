"""Who is at work in a simulated world: real clients, each with habits of its own.

clients       producers and readers
raw_producer  a producer without a client
members       members of groups
dealings      what a member is given and says, noted
group_plans   what the groups of a run are like
passing       clients of a stream that comes and goes
pipelines     triggers, and runners of stages
together      whoever has several commands done as one
operators     whoever resets groups, changes limits, retries instances, takes backups
curious       whoever asks what there is to know
crowd         everybody of a random run
"""
