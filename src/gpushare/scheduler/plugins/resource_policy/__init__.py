"""The plugin ``resource-policy``: node groups (units) in order of preference."""
