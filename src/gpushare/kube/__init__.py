"""The API server: how to reach it, and the few reads, writes, watches and events that we need.

``access`` tells where it is and who we are, ``session`` speaks HTTP to it, ``informer`` keeps a view
of a collection, ``client`` reads and writes single objects, ``events`` tells people what happened.
"""
