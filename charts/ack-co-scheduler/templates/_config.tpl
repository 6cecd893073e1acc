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
    # Full nodes are asked about too: elastic quotas take back there what others have borrowed. The extender counts what a
    # node's kubelet offers, and never places a pod above it.
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
    # Whom kube-scheduler would end for a pod: room on one GPU must come of it.
    preemptVerb: preempt
    weight: {{ .Values.extender.weight }}
    # It knows the nodes itself; names are enough.
    nodeCacheCapable: true
    httpTimeout: {{ .Values.extender.timeoutSeconds }}s
    # Without it no pod that names this scheduler is placed: kube-scheduler alone would go by the node's sum and leave no
    # record, and would know of no ResourcePolicy.
    ignorable: false
    # No managedResources: a ResourcePolicy is for pods without GPUs, too.
{{- end }}
