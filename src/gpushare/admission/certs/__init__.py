"""The webhook's serving certificate: issued, stored in a Secret, rotated, loaded."""
