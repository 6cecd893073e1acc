"""The playground's Kubernetes API server: enough of the real one for kubectl and for client-go."""

from gpushare_playground.apiserver.server import ApiServer

__all__ = ["ApiServer"]
