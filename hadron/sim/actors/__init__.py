"""Who is at work in a simulated world: real clients, each with habits of its own.

clients       producers and readers
raw_producer  a producer without a client
members       members of groups
dealings      what a member is given and says, noted
group_plans   what the groups of a run are like
passing       clients of a stream that comes and goes
transactions  clients that do transactions, and ask what became of them
bursts        a client that commits several of them at the same time
steps         members of a group that make outputs, in transactions
transacting   everybody who does transactions in a run
pipelines     triggers, and runners of stages
waiting       a pipeline whose stages wait: who orders, who pays, who approves
cancelling    whoever cancels instances whose outputs are on their way
together      whoever has several commands done as one
operators     whoever resets groups, changes limits, retries instances, takes backups
curious       whoever asks what there is to know
crowd         everybody of a random run
"""
