"""ElasticQuotaTree: guaranteed and maximum resources of namespaces."""
