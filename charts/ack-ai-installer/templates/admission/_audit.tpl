{{/*
Audit annotations of pods that request GPUs: policies log nothing themselves, and the UID by which the logs of all our
processes are searched is first known here (docs/guide/logs.md). A separate policy that rejects nothing: with Ignore, a
value that cannot be evaluated is left out of the log and blocks no pod, as it would among the rules on requests.
*/}}
{{- define "gpushare.admission.audit" -}}
failurePolicy: Ignore
matchConstraints:
  {{- include "gpushare.admission.namespaces" . | nindent 2 }}
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
matchConditions:
  - name: asks-for-gpu
    expression: >-
      {{ include "gpushare.admission.rules.asksForGpu" (dict "pod" "object") | nindent 6 | trim }}
variables:
  - name: ours
    expression: >-
      {{ include "gpushare.admission.ours" . | nindent 6 | trim }}
auditAnnotations:
  # The API server sets a pod's name and UID before validation.
  - key: uid
    valueExpression: string(object.metadata.?uid.orValue(''))
  - key: pod
    valueExpression: string(object.metadata.?namespace.orValue('')) + '/' + string(object.metadata.?name.orValue(''))
  - key: scheduler
    valueExpression: string(object.spec.?schedulerName.orValue(''))
  # As the pod is stored, in units.
  - key: asks
    valueExpression: >-
      (object.spec.containers + object.spec.?initContainers.orValue([]))
      .filter(c, variables.ours.exists(r, r in c.?resources.limits.orValue({})))
      .map(c, 'container ' + c.name + ' asks for ' + variables.ours.filter(r, r in c.?resources.limits.orValue({}))
        .map(r, r + ': ' + string(c.resources.limits[r])).join(', ')).join('; ')
  # What was written before it was counted in units; an empty value is left out.
  - key: requested
    valueExpression: string(object.metadata.?annotations[?'gpushare.dev/requested'].orValue(''))
{{- end }}
