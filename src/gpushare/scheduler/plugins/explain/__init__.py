"""Why a pod is pending, and what would help."""
