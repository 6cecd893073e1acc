"""What shares through ResourceClaims cost (node mode ``dra``)."""
