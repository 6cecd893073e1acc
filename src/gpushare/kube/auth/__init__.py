"""Access to the API server: kubeconfig, ServiceAccount, exec plugins, TLS, proxies, tokens."""
