"""The cost of shares through ResourceClaims (node mode ``dra``)."""
