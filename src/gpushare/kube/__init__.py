"""Client of the API server: access, and the few reads, writes, watches and Events that gpushare needs.

``auth`` has the server's address and our credentials, ``client`` the HTTP session and reads and writes of single objects, ``watch``
informers of collections, and ``event_recorder`` writes Events.
"""
