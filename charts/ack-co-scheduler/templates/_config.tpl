{{- define "co.config" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceName: ack-co-scheduler
  resourceNamespace: {{ .Release.Namespace }}
  leaseDuration: {{ .Values.leaderElection.leaseDurationSeconds }}s
  renewDeadline: {{ .Values.leaderElection.renewDeadlineSeconds }}s
  retryPeriod: {{ .Values.leaderElection.retryPeriodSeconds }}s
clientConnection:
  qps: {{ .Values.kubeScheduler.qps }}
  burst: {{ .Values.kubeScheduler.burst }}
parallelism: {{ .Values.kubeScheduler.parallelism }}
percentageOfNodesToScore: {{ .Values.kubeScheduler.percentageOfNodesToScore }}
podInitialBackoffSeconds: {{ .Values.kubeScheduler.podInitialBackoffSeconds }}
podMaxBackoffSeconds: {{ .Values.kubeScheduler.podMaxBackoffSeconds }}
profiles:
  - schedulerName: ack-co-scheduler
    {{- if .Values.extender.ignoredByScheduler }}
    # The extender is also called for full nodes, where elastic quotas reclaim borrowed capacity. It counts what a node's
    # kubelet offers, and never places a pod above that.
    pluginConfig:
      - name: NodeResourcesFit
        args:
          ignoredResources: [aliyun.com/gpu-mem, aliyun.com/gpu-core.percentage, aliyun.com/gpu]
    {{- end }}
extenders:
  - urlPrefix: http://127.0.0.1:{{ .Values.extender.port }}/gpushare
    filterVerb: filter
    prioritizeVerb: prioritize
    # The extender binds: the decision and its record are one write.
    bindVerb: bind
    # Victims proposed by kube-scheduler: their eviction must free enough on a single GPU.
    preemptVerb: preempt
    weight: {{ .Values.extender.weight }}
    # It knows the nodes itself; names are enough.
    nodeCacheCapable: true
    httpTimeout: {{ .Values.extender.timeoutSeconds }}s
    # Without the extender no pod of this scheduler is placed: kube-scheduler alone would only check the node's total, write
    # no record and ignore ResourcePolicies.
    ignorable: false
    # No managedResources: a ResourcePolicy is for pods without GPUs, too.
{{- end }}
