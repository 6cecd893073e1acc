"""Lists, watches, and the tables that kubectl prints."""
