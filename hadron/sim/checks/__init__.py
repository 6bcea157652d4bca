"""The judge: what Hadron promises, held against the evidence.

checker    all checks of one replica set
logs       what was acknowledged is there, once, in order, everywhere
reads      what readers were shown
groups     consumer groups
letters    dead letters
flows      pipelines as the files of all sets have them
pipelines  instances and outputs
waits      what stages have waited for
tables     equal logs make equal tables, those that the commands mean
bounds     time and room
regions    several replica sets, and what holds between them
rules      which oracle sees it when a rule is broken
"""
