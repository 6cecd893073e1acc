"""ResourcePolicy: node groups in order of preference."""
