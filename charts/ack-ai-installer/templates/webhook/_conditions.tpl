{{/*
CEL of matchConditions: for which objects the API server calls the webhook. Written without the optional types that Kubernetes
1.28 does not support. The webhook's process checks again itself, so a condition may be too wide, never too narrow.
*/}}

{{/* The containers of a list of a pod, some of which ask for something of ours. Takes the list's path. */}}
{{- define "gpushare.webhook.asking" -}}
(has({{ . }}) && {{ . }} != null && {{ . }}.exists(c, has(c.resources) && has(c.resources.limits)
  && c.resources.limits.exists(r, r.startsWith('aliyun.com/gpu') || r.startsWith('gpushare.dev/gpu-memory'))))
{{- end }}

{{/* The containers of a list of a pod, some of which use a ResourceClaim, as in gpushare.admission.usesClaim. Takes the list's path. */}}
{{- define "gpushare.webhook.claiming" -}}
(has({{ . }}) && {{ . }} != null && {{ . }}.exists(c, has(c.resources)
  && ((has(c.resources.claims) && c.resources.claims != null && size(c.resources.claims) > 0)
    || (has(c.resources.limits) && c.resources.limits.exists(r, r == 'gpushare.dev/share' || r.startsWith('deviceclass.resource.kubernetes.io/'))))))
{{- end }}

{{/* The containers of a list of a pod, some of which request an amount of memory (MiB or percent). Takes the list's path. */}}
{{- define "gpushare.webhook.askingMemoryAmount" -}}
(has({{ . }}) && {{ . }} != null && {{ . }}.exists(c, has(c.resources) && has(c.resources.limits)
  && c.resources.limits.exists(r, r.startsWith('gpushare.dev/gpu-memory'))))
{{- end }}

{{/* A pod or a template whose requests are replaced, or that selects GPUs if one has to match: it uses the request format of an accepted scheduler, or ours. Takes (dict "root" $ "pod" PATH). */}}
{{- define "gpushare.webhook.asksOtherwise" -}}
{{- $ways := list -}}
{{- if has "hami" .root.Values.admission.accept -}}
{{- range list "containers" "initContainers" -}}
{{- $list := printf "%s.spec.%s" $.pod . -}}
{{- $ways = append $ways (printf "(has(%s) && %s != null && %s.exists(c, has(c.resources) && has(c.resources.limits)\n  && ['nvidia.com/gpumem', 'nvidia.com/gpumem-percentage', 'nvidia.com/gpucores'].exists(r, r in c.resources.limits)))" $list $list $list) -}}
{{- end -}}
{{- end -}}
{{- if has "kai" .root.Values.admission.accept -}}
{{- $ways = append $ways (printf "(has(%s.metadata) && has(%s.metadata.annotations) && %s.metadata.annotations.exists(a,\n  ['gpu-fraction', 'gpu-memory', 'gpu-sm-', 'nvidia.com/container.'].exists(p, a.startsWith(p))))" $.pod $.pod $.pod) -}}
{{- end -}}
{{- if .root.Values.admission.toClaims -}}
{{- $ways = append $ways (include "gpushare.webhook.asks" .pod) -}}
{{- else if .root.Values.admission.requireMatchingGPU -}}
{{- $ways = append $ways (printf "(has(%s.metadata) && has(%s.metadata.annotations)\n  && %s.metadata.annotations.exists(a, a.startsWith('gpushare.dev/gpu-')))" .pod .pod .pod) -}}
{{- end -}}
{{- join "\n|| " $ways -}}
{{- end }}

{{/* A pod or a template that names no scheduler, ours, or one whose requests are accepted; any where requests become claims. Takes the same. */}}
{{- define "gpushare.webhook.isForUs" -}}
{{- if .root.Values.admission.toClaims -}}
true
{{- else -}}
{{- $names := list "" "default-scheduler" .root.Values.admission.schedulerName -}}
{{- range .root.Values.admission.accept -}}
{{- $names = append $names (printf "%s-scheduler" .) -}}
{{- end -}}
!has({{ .pod }}.spec.schedulerName) || {{ .pod }}.spec.schedulerName in {{ $names | toJson }}
{{- end -}}
{{- end }}

{{/* The namespaces and pods that have not opted out, and are checked. */}}
{{- define "gpushare.webhook.optedIn" -}}
namespaceSelector:
  matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "gpushare.admission.excludedNamespaces" . }}}
    - {key: gpushare.dev/admission, operator: NotIn, values: [disabled]}
objectSelector:
  matchExpressions:
    - {key: gpushare.dev/admission, operator: NotIn, values: [disabled]}
{{- end }}

{{/* The kinds with a pod template, and where it is: YAML, a list under the key kinds. */}}
{{- define "gpushare.webhook.templates" -}}
kinds:
  - of: templates
    pod: object.spec.template
    rules:
      - {apiGroups: [apps], resources: [deployments, statefulsets, daemonsets, replicasets]}
      - {apiGroups: [batch], resources: [jobs]}
      - {apiGroups: [""], resources: [replicationcontrollers]}
  - of: cronjobs
    pod: object.spec.jobTemplate.spec.template
    rules:
      - {apiGroups: [batch], resources: [cronjobs]}
  - of: podtemplates
    pod: object.template
    rules:
      - {apiGroups: [""], resources: [podtemplates]}
{{- end }}

{{/* A pod or a template that asks for something of ours. Takes its path. */}}
{{- define "gpushare.webhook.asks" -}}
({{ include "gpushare.webhook.asking" (print . ".spec.containers") }}
 || {{ include "gpushare.webhook.asking" (print . ".spec.initContainers") }})
{{- end }}

{{/* A pod or a template that is validated: it asks for something of ours, uses a ResourceClaim, or carries records. Takes its path. */}}
{{- define "gpushare.webhook.isValidated" -}}
{{ include "gpushare.webhook.asks" . }}
|| {{ include "gpushare.webhook.claiming" (print . ".spec.containers") }}
|| {{ include "gpushare.webhook.claiming" (print . ".spec.initContainers") }}
|| {{ include "gpushare.webhook.carries" . }}
{{- end }}

{{/* A pod, template or binding that carries records. Takes its path. */}}
{{- define "gpushare.webhook.carries" -}}
(has({{ . }}.metadata) && has({{ . }}.metadata.annotations)
 && {{ include "gpushare.admission.records" nil | replace "\n" "" }}.exists(n, n in {{ . }}.metadata.annotations))
{{- end }}

{{/* Whether one of NAMES in the map at PLACE of metadata is another than before. Takes (dict "names" "place"). */}}
{{- define "gpushare.webhook.changed" -}}
{{ .names }}.exists(n,
  (has(object.metadata.{{ .place }}) && n in object.metadata.{{ .place }})
    != (oldObject != null && has(oldObject.metadata.{{ .place }}) && n in oldObject.metadata.{{ .place }})
  || (has(object.metadata.{{ .place }}) && n in object.metadata.{{ .place }}
    && object.metadata.{{ .place }}[n] != oldObject.metadata.{{ .place }}[n]))
{{- end }}

{{/* Whether what is at PATH of the object, such as .metadata.finalizers, is another than before. What it lies in must be there. */}}
{{- define "gpushare.webhook.another" -}}
(has(object{{ . }}) != has(oldObject{{ . }}) || (has(object{{ . }}) && object{{ . }} != oldObject{{ . }}))
{{- end }}

{{/* A change of a pod that the scheduler never makes. The scheduler's chart has the same rule as a policy (templates/guards.yaml). */}}
{{- define "gpushare.webhook.notTheSchedulers" -}}
(has(request.subResource) && !(request.subResource in ['', 'status']))
|| object.spec != oldObject.spec
|| {{ include "gpushare.webhook.another" ".metadata.finalizers" }}
|| {{ include "gpushare.webhook.another" ".metadata.ownerReferences" }}
|| (has(request.subResource) && request.subResource == 'status' && (!has(object.status) || !has(oldObject.status)
  {{- range list "phase" "reason" "message" "hostIP" "hostIPs" "podIPs" "initContainerStatuses" "containerStatuses" "ephemeralContainerStatuses" }}
  || {{ include "gpushare.webhook.another" (print ".status." .) }}
  {{- end }}))
{{- end }}

{{/* A change of a node other than removing its startup taint (templates/autoscaling.yaml of the scheduler's chart). */}}
{{- define "gpushare.webhook.moreThanTheTaint" -}}
(has(object.spec.taints) ? object.spec.taints : [])
  != (has(oldObject.spec.taints) ? oldObject.spec.taints.filter(t, t.key != 'startup-taint.cluster-autoscaler.kubernetes.io/gpushare') : [])
{{- range list "spec.unschedulable" "spec.providerID" "spec.podCIDRs" "metadata.labels" "metadata.annotations" "metadata.finalizers" "metadata.ownerReferences" }}
|| {{ include "gpushare.webhook.another" (print "." .) }}
{{- end }}
{{- end }}

{{- define "gpushare.webhook.isWriter" -}}
request.userInfo.username in {{ include "gpushare.admission.writers" . }}
{{- end }}

{{/* What all our webhooks have in common. Takes (dict "root" $ "path" PATH), and "sideEffects" where it has some. */}}
{{- define "gpushare.webhook.client" -}}
admissionReviewVersions: [v1]
sideEffects: {{ .sideEffects | default "None" }}
matchPolicy: Equivalent
timeoutSeconds: {{ .root.Values.webhook.timeoutSeconds }}
# caBundle is written by the webhook itself, which issues and renews its certificate.
clientConfig:
  service: {name: gpushare-admission, namespace: {{ .root.Release.Namespace | quote }}, path: {{ .path }}, port: 443}
{{- end }}
