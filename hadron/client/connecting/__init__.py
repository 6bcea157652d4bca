"""The ways to a cluster's leaders: found, dialed, watched, and found again.

* `session`: a client's connections, and requests that are retried until they time out.
* `links`: the connections to single nodes.
* `reconnecting_call`: a streaming call that is opened again whenever it ends.
* `leaders`: asking the leaders of several partitions at once.
* `nodes`: what single nodes are asked, whoever leads.
* `topology`: what is known of who leads, and which of several answers is believed.
* `tunnels`: leaders that cannot be dialed, reached through other nodes.
* `probes`: whether a way that brings nothing is dead.
* `outages`: notices that somebody else leads by now, and says what is waited for.
* `background`: tasks that live as long as the client.
* `forks`: what a child process must not touch.
* `ports`: clock, randomness and network, real by default.
* `over_grpc`: the network through nodes' gRPC doors, for `grpc://`.
* `url`: how a cluster is named, `hadron://...`.
* `contexts`: which cluster is meant where none is named.
"""
