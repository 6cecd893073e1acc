"""The product's servers under attack: floods of connections, slow clients, endless requests, broken TLS, continuous readers."""
