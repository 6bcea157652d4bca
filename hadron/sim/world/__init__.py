"""Simulated worlds: what there is, and what can be done to it.

replica_set   the nodes of one, and their clients
config_files  what stands in their files
closing       errors of closing files, told from what stopped a node
regions       several replica sets that share a network
backups       what operators do with copies
"""
