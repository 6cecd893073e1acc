{{/* Names are fixed: users type them, and one cluster has one of each. */}}

{{- define "co.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* v1.29.4 of v1.29.4-gke.100 or v1.29.4+k3s1: only that is published. */}}
{{- define "co.kubeVersion" -}}
{{ regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}
{{- end }}

{{- define "co.kubeSchedulerImage" -}}
{{- with .Values.kubeScheduler.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default (include "co.kubeVersion" $) }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What selects the pods; never changes, for selectors cannot. */}}
{{- define "co.selector" -}}
app.kubernetes.io/name: ack-co-scheduler
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "co.labels" -}}
{{ include "co.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpushare
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "co.dashboardSelector" -}}
app.kubernetes.io/name: gpushare-dashboard
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "co.dashboardLabels" -}}
{{ include "co.dashboardSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpushare
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/*
The clients of a port, as the from of an ingress rule: the API servers, the scrapers of metrics, and what else is listed. All clients
if API servers are needed but not known, because requests through them must work. Takes (dict "root" $ "apiServers" BOOL "metrics" BOOL "besides" LIST).
*/}}
{{- define "co.from" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $peers := .besides | default list -}}
{{- if .apiServers -}}
{{- range $policy.apiServers -}}
{{- $peers = append $peers (dict "ipBlock" (dict "cidr" .)) -}}
{{- end -}}
{{- end -}}
{{- if .metrics -}}
{{- $peers = concat $peers $policy.metricsFrom -}}
{{- end -}}
{{- if and (or (not .apiServers) $policy.apiServers) (or .apiServers (not .metrics) $policy.metricsFrom) -}}
from:
  {{- toYaml $peers | nindent 2 }}
{{- end -}}
{{- end }}

{{/* Pod Security "restricted". */}}
{{- define "co.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The version that runs: of the image's tag where that is one, else the cluster's. */}}
{{- define "co.schedulerVersion" -}}
{{ regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Values.kubeScheduler.image.tag | default (include "co.kubeVersion" .) }}
{{- end }}
