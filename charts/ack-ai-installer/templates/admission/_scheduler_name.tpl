{{- define "gpushare.admission.scheduler" -}}
failurePolicy: Fail
# GPU containers that later webhooks add are covered, too.
reinvocationPolicy: IfNeeded
matchConstraints:
  namespaceSelector:
    matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "gpushare.admission.excludedNamespaces" . }}}
      - {key: gpushare.dev/admission, operator: NotIn, values: [disabled]}
  objectSelector:
    matchExpressions:
      - {key: gpushare.dev/admission, operator: NotIn, values: [disabled]}
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
matchConditions:
  - name: names-no-scheduler
    expression: object.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler'
  - name: has-no-node
    expression: object.spec.?nodeName.orValue('') == ''
  - name: asks-for-a-share
    expression: >-
      (object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
        {{ include "gpushare.admission.asks" "aliyun.com/gpu-mem" }}
        || {{ include "gpushare.admission.asksMemoryAmount" . }}
        || {{ include "gpushare.admission.asks" "aliyun.com/gpu-core.percentage" }}
        || {{ include "gpushare.admission.asks" "aliyun.com/gpu" }})
mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{spec: Object.spec{schedulerName: '{{ .Values.admission.schedulerName }}'}}"
{{- end }}
