{{/*
Allocation records may only be written by the scheduler and the node agents, not even by administrators, because the
ledger and the containers would not follow.
*/}}
{{- define "gpushare.admission.records.pods" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    # The subresources through which metadata of a pod can be changed.
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [pods, pods/status, pods/ephemeralcontainers, pods/resize]
matchConditions:
  - name: is-no-writer
    expression: >-
      !(request.userInfo.username in {{ include "gpushare.admission.writers" . }})
  # Kubelets write status all the time, so the cheapest condition comes first.
  - name: touches-annotations
    expression: >-
      object.metadata.?annotations != (oldObject == null ? optional.none() : oldObject.metadata.?annotations)
  - name: touches-records
    expression: >-
      {{ include "gpushare.admission.records" . | nindent 6 | trim }}.exists(n, object.metadata.?annotations[?n]
        != (oldObject == null ? optional.none() : oldObject.metadata.?annotations[?n]))
variables:
  - name: carried
    expression: >-
      {{ include "gpushare.admission.records" . | nindent 6 | trim }}.filter(n, object.metadata.?annotations[?n]
        != (oldObject == null ? optional.none() : oldObject.metadata.?annotations[?n]))
validations:
  - expression: request.operation != 'CREATE'
    reason: Forbidden
    messageExpression: {{ include "gpushare.admission.carried" . }}
  - expression: request.operation != 'UPDATE'
    reason: Forbidden
    messageExpression: >-
      'annotations that only gpushare itself writes: ' + variables.carried.join(', ')
      + '; do not change them (to release an allocation, delete the pod)'
{{- end }}

{{- define "gpushare.admission.records.bindings" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods/binding, bindings]
matchConditions:
  - name: is-no-writer
    expression: >-
      !(request.userInfo.username in {{ include "gpushare.admission.writers" . }})
variables:
  - name: carried
    expression: >-
      {{ include "gpushare.admission.records" . | nindent 6 | trim }}
      .filter(n, n in object.?metadata.?annotations.orValue({}))
validations:
  - expression: size(variables.carried) == 0
    reason: Forbidden
    messageExpression: {{ include "gpushare.admission.carried" . }}
{{- end }}

{{- define "gpushare.admission.records.nodes" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [nodes, nodes/status]
matchConditions:
  - name: is-no-writer
    expression: >-
      !(request.userInfo.username in {{ include "gpushare.admission.writers" . }})
validations:
  - expression: >-
      object.metadata.?annotations[?'gpushare.dev/devices']
      == (oldObject == null ? optional.none() : oldObject.metadata.?annotations[?'gpushare.dev/devices'])
    reason: Forbidden
    message: >-
      annotation gpushare.dev/devices is written only by the node agent; do not change it (to change what a node
      offers, set its label ack.node.gpu.schedule)
{{- end }}
