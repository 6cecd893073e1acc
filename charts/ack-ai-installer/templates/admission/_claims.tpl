{{/*
What ResourceClaims may ask of our devices: docs/guide/dra.md. Written once for claims and for templates of them, with the place
of the claim's spec as argument: (dict "root" $ "spec" PATH).
*/}}

{{/* CEL: whether CHECK, about the capacities c that are asked for, holds of all that request r asks of our class. Takes CHECK. */}}
{{- define "gpushare.admission.claims.all" -}}
(r.?exactly.deviceClassName.orValue('') != 'gpushare.dev'
  || [r.exactly.?capacity.requests.orValue({})].all(c, {{ . }}))
&& r.?firstAvailable.orValue([]).all(s, s.deviceClassName != 'gpushare.dev'
  || [s.?capacity.requests.orValue({})].all(c, {{ . }}))
{{- end }}

{{- define "gpushare.admission.claims" -}}
failurePolicy: Fail
matchConstraints:
  {{- include "gpushare.admission.namespaces" .root | nindent 2 }}
  resourceRules:
    - apiGroups: [resource.k8s.io]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [{{ .resource }}]
matchConditions:
  - name: asks-for-shares
    expression: >-
      {{ .spec }}.devices.?requests.orValue([]).exists(r, r.?exactly.deviceClassName.orValue('') == 'gpushare.dev'
        || r.?firstAvailable.orValue([]).exists(s, s.deviceClassName == 'gpushare.dev'))
variables:
  - name: requests
    expression: {{ .spec }}.devices.?requests.orValue([])
  - name: unknown
    expression: >-
      variables.requests.filter(r, !({{ include "gpushare.admission.claims.all" "c.all(k, k in ['memory', 'compute', 'shares'])" | nindent 6 | trim }}))
  - name: wrongCompute
    expression: >-
      variables.requests.filter(r, !({{ include "gpushare.admission.claims.all" "!('compute' in c) || (quantity(string(c['compute'])).isInteger() && quantity(string(c['compute'])).asInteger() % 5 == 0 && quantity(string(c['compute'])).compareTo(quantity('0')) >= 0 && quantity(string(c['compute'])).compareTo(quantity('100')) <= 0)" | nindent 6 | trim }}))
  - name: wrongShares
    expression: >-
      variables.requests.filter(r, !({{ include "gpushare.admission.claims.all" "!('shares' in c) || quantity(string(c['shares'])).compareTo(quantity('1')) == 0" | nindent 6 | trim }}))
validations:
  - expression: variables.unknown.size() == 0
    messageExpression: >-
      'a claim for gpushare.dev can request capacity memory and compute, nothing else: '
      + variables.unknown.map(r, 'request ' + r.name).join(', ')
  - expression: variables.wrongCompute.size() == 0
    messageExpression: >-
      'compute must be 0 or a multiple of 5 from 5 to 100: '
      + variables.wrongCompute.map(r, 'request ' + r.name).join(', ')
  - expression: variables.wrongShares.size() == 0
    messageExpression: >-
      'a claim consumes one of a GPU\'s shares, leave capacity shares out: '
      + variables.wrongShares.map(r, 'request ' + r.name).join(', ')
{{- end }}
