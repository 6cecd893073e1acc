{{/* Names are fixed: users type them, and one cluster has one of each. */}}

{{- define "gpushare.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* What selects the pods of a part; never changes, for selectors cannot. Takes (dict "root" $ "name" NAME). */}}
{{- define "gpushare.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- end }}

{{/* All labels of an object; the same arguments. */}}
{{- define "gpushare.labels" -}}
{{ include "gpushare.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: gpushare
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "gpushare.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Pod Security "restricted", for containers that need nothing of the node. */}}
{{- define "gpushare.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "gpushare.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* --- admission: what does which part; each yields "true" or nothing ------------------------------------------- */}}

{{- define "gpushare.admission.hasValidatingPolicy" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" -}}true{{- end -}}
{{- end }}
{{- define "gpushare.admission.hasMutatingPolicy" -}}
{{- if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}true{{- end -}}
{{- end }}

{{- define "gpushare.admission.validateByPolicy" -}}
{{- with .Values.admission -}}
{{- if and .enabled .validation (ne .mode "webhook") (include "gpushare.admission.hasValidatingPolicy" $) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{- define "gpushare.admission.validateByWebhook" -}}
{{- with .Values.admission -}}
{{- if and .enabled .validation (ne .mode "policy") (not (include "gpushare.admission.validateByPolicy" $)) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{/* What protects records and restricts node agents to their nodes, whether requests are validated or not. */}}
{{- define "gpushare.admission.guardByPolicy" -}}
{{- with .Values.admission -}}
{{- if and .guards (ne .mode "webhook") (include "gpushare.admission.hasValidatingPolicy" $) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{- define "gpushare.admission.guardByWebhook" -}}
{{- with .Values.admission -}}
{{- if and .guards (not (include "gpushare.admission.guardByPolicy" $)) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{- define "gpushare.admission.pointByPolicy" -}}
{{- with .Values.admission -}}
{{- if and .enabled .setSchedulerName (ne .mode "webhook") (include "gpushare.admission.hasMutatingPolicy" $) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{- define "gpushare.admission.pointByWebhook" -}}
{{- with .Values.admission -}}
{{- if and .enabled .setSchedulerName (ne .mode "policy") (not (include "gpushare.admission.pointByPolicy" $)) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{/* Requests in MiB or percent are converted whenever admission is enabled: unconverted, they fit no node. */}}
{{- define "gpushare.admission.countByPolicy" -}}
{{- with .Values.admission -}}
{{- if and .enabled (ne .mode "webhook") (include "gpushare.admission.hasMutatingPolicy" $) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{- define "gpushare.admission.countByWebhook" -}}
{{- with .Values.admission -}}
{{- if and .enabled (ne .mode "policy") (not (include "gpushare.admission.countByPolicy" $)) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{/* Only the webhook can replace requests of other schedulers, convert requests to claims, and knows the cluster's GPUs. */}}
{{- define "gpushare.admission.acceptByWebhook" -}}
{{- with .Values.admission -}}
{{- if and .enabled (or .accept .toClaims .requireMatchingGPU) -}}true{{- end -}}
{{- end -}}
{{- end }}
{{/* Whether the webhook runs at all. */}}
{{- define "gpushare.admission.webhook" -}}
{{- if or (include "gpushare.admission.acceptByWebhook" .) (include "gpushare.admission.validateByWebhook" .) (include "gpushare.admission.guardByWebhook" .) (include "gpushare.admission.countByWebhook" .) -}}true{{- end -}}
{{- end }}

{{- define "gpushare.schedulerNamespace" -}}
{{ .Values.admission.schedulerNamespace | default .Release.Namespace }}
{{- end }}
{{- define "gpushare.user.nodeAgent" -}}
system:serviceaccount:{{ .Release.Namespace }}:gpushare-device-plugin
{{- end }}
{{- define "gpushare.user.scheduler" -}}
system:serviceaccount:{{ include "gpushare.schedulerNamespace" . }}:ack-co-scheduler
{{- end }}
{{/* A JSON list, which is valid CEL and YAML: the users that may write allocation records. */}}
{{- define "gpushare.admission.writers" -}}
{{- concat (list (include "gpushare.user.scheduler" .) (include "gpushare.user.nodeAgent" .)) .Values.admission.trustedServiceAccounts | uniq | toJson -}}
{{- end }}
{{/* A JSON list of namespaces in which requests are not checked. */}}
{{- define "gpushare.admission.excludedNamespaces" -}}
{{- concat (list "kube-system" .Release.Namespace) .Values.admission.excludedNamespaces | uniq | toJson -}}
{{- end }}

{{/*
The clients of a port, as the from of an ingress rule: the API servers, the scrapers of metrics, and what else is listed. All clients
if API servers are needed but not known, because requests through them must work. Takes (dict "root" $ "apiServers" BOOL "metrics" BOOL "besides" LIST).
*/}}
{{- define "gpushare.from" -}}
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
