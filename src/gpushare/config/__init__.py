"""``gpushare config``: what can be set, what is set, and whether a file is right."""
