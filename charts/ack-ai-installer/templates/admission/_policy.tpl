{{/*
One policy and its binding. Takes (dict "root" $ "name" NAME "body" SPEC "actions" LIST
"kind" ValidatingAdmissionPolicy), where SPEC is the policy's spec as YAML.
*/}}
{{- define "gpushare.admission.policy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: {{ .kind | default "ValidatingAdmissionPolicy" }}
metadata:
  name: {{ .name }}
  labels:
    {{- include "gpushare.labels" (dict "root" .root "name" "gpushare-admission") | nindent 4 }}
spec:
  {{- .body | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: {{ .kind | default "ValidatingAdmissionPolicy" }}Binding
metadata:
  name: {{ .name }}
  labels:
    {{- include "gpushare.labels" (dict "root" .root "name" "gpushare-admission") | nindent 4 }}
spec:
  policyName: {{ .name }}
  {{- with .actions }}
  validationActions: {{ toJson . }}
  {{- end }}
{{- end }}

{{/* Requests of pods in system namespaces are not checked; records are. */}}
{{- define "gpushare.admission.namespaces" -}}
namespaceSelector:
  matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "gpushare.admission.excludedNamespaces" . }}}
{{- end }}

{{/* The annotations that record allocations of pods, in the order in which messages name them. A CEL list. */}}
{{- define "gpushare.admission.records" -}}
['gpushare.dev/allocation', 'gpushare.dev/also-holds', 'gpushare.dev/retry',
 'scheduler.framework.gpushare.allocation', 'scheduler.framework.gpushare.assigned',
 'scheduler.framework.gpushare.assume-time', 'gpushare.alibabacloud.com/core-percentage',
 'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_POD', 'ALIYUN_COM_GPU_MEM_DEV',
 'ALIYUN_COM_GPU_MEM_ASSIGNED', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME']
{{- end }}

{{/* CEL: whether container c requests more than 0 of a resource. */}}
{{- define "gpushare.admission.asks" -}}
quantity(string(c.?resources.limits[?'{{ . }}'].orValue('0'))).isGreaterThan(quantity('0'))
{{- end }}

{{/* CEL: the containers of a list variable, as text: container a, container b. */}}
{{- define "gpushare.admission.named" -}}
variables.{{ . }}.map(c, 'container ' + c.name).join(', ')
{{- end }}
