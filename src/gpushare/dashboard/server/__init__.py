"""The dashboard over HTTP: pages, sign-in, event stream."""
