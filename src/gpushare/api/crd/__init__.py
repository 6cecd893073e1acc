"""Custom resources: ElasticQuotaTree, ResourcePolicy, placeholder pods."""
