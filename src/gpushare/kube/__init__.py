"""Client of the API server: access, and the few reads, writes, watches and events that gpushare needs.

``access`` holds its address and our credentials, ``session`` speaks HTTP to it, ``informer`` keeps a view
of a collection, ``client`` reads and writes single objects, ``events`` tells people what happened.
"""
