"""Consuming with a group. Who is who, from the user inwards:

a *subscription* is what users call; its inside is a *consumer*, the member of a group, which has a
*membership* at each partition, whose present call to the leader is a *channel*. A channel brings
*parcels*: consecutive records of one batch, under one number (the wire's `Delivery`). Each record
that is handed to the user is a *delivery*, or they come together as a *delivery batch*; both are
acknowledged on their parcel's channel.

* `subscription`: what users call.
* `settings`: the arguments of `Client.subscribe`, checked, and the first message of a member.
* `assembly`: from settings to a subscription.
* `deliveries`: what users are handed, to be acknowledged.
* `steps`: what users are handed in transactions, each of which commits what was made of it.
* `consumer`: the inside of a subscription, over all its partitions.
* `membership`: the member at one partition, through all its calls.
* `channel`: one call: the parcels that it has brought, and what is acknowledged on it.
* `acks`: acknowledgements on their way, coalesced; those that came late.
* `groups`: what there is to know and to change of groups.
"""
