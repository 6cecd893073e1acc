"""The dashboard's HTTP server: pages, login, event stream."""
