"""The controller of a replica set's log: admit, group commit, replicate, commit, reply and wake."""
