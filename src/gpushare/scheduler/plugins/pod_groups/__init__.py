"""kube-scheduler's own gangs, PodGroups: their pods' shares are reserved from filter to bind."""
