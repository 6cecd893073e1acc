"""The ways to enforce a share: preloaded libraries, CDI, MPS, the driver's own limits."""
