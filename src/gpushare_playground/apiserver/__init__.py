"""The playground's Kubernetes API server: as much of the real one as kubectl and client-go need."""

from gpushare_playground.apiserver.server import ApiServer

__all__ = ["ApiServer"]
