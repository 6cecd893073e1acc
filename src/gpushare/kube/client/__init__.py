"""Requests to the API server: session, single objects, lists, errors."""
