"""Requests for GPUs as ResourceClaims, for clusters whose nodes are in mode ``dra`` (docs/decisions/0042-requests-as-claims.md)."""
