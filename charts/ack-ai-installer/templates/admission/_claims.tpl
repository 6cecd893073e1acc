{{/*
What ResourceClaims may ask of our devices: docs/guide/dra.md. Written once for claims and for templates of them, with the place
of the claim's spec as argument: (dict "root" $ "spec" PATH).
*/}}

{{/*
CEL: for each request whose capacities fail a check, a text that names it: (dict "bad" CEL "text" CEL), both about one a of
variables.asked, with a.name and a.capacity.
*/}}
{{- define "gpushare.admission.claims.wrong" -}}
variables.asked.map(l, l.filter(a, {{ .bad }}).map(a, 'request ' + a.name{{ with .text }} + {{ . }}{{ end }}).join(', ')).filter(t, t != '')
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
  - name: asked
    expression: >-
      variables.requests.map(r,
        (r.?exactly.deviceClassName.orValue('') == 'gpushare.dev'
          ? [{'name': dyn(r.name), 'capacity': dyn(r.exactly.?capacity.requests.orValue({}))}] : [])
        + r.?firstAvailable.orValue([]).filter(s, s.deviceClassName == 'gpushare.dev')
          .map(s, {'name': dyn(r.name + '/' + s.name), 'capacity': dyn(s.?capacity.requests.orValue({}))}))
  - name: unknown
    expression: >-
      {{ include "gpushare.admission.claims.wrong" (dict "bad" "a.capacity.exists(k, !(k in ['memory', 'compute', 'shares']))") }}
  - name: wrongMemory
    expression: >-
      {{ include "gpushare.admission.claims.wrong" (dict
        "bad" "'memory' in a.capacity && quantity(string(a.capacity['memory'])).isLessThan(quantity('1Mi'))"
        "text" "' asks for ' + string(a.capacity['memory'])") }}
  - name: wrongCompute
    expression: >-
      {{ include "gpushare.admission.claims.wrong" (dict
        "bad" "'compute' in a.capacity && !(quantity(string(a.capacity['compute'])).isInteger() && quantity(string(a.capacity['compute'])).asInteger() % 5 == 0 && quantity(string(a.capacity['compute'])).compareTo(quantity('0')) >= 0 && quantity(string(a.capacity['compute'])).compareTo(quantity('100')) <= 0)"
        "text" "' asks for ' + string(a.capacity['compute'])") }}
  - name: wrongShares
    expression: >-
      {{ include "gpushare.admission.claims.wrong" (dict
        "bad" "'shares' in a.capacity && quantity(string(a.capacity['shares'])).compareTo(quantity('1')) != 0") }}
validations:
  - expression: variables.unknown.size() == 0
    messageExpression: >-
      'a claim for gpushare.dev can request capacity memory and compute, nothing else: '
      + variables.unknown.join(', ')
  - expression: variables.wrongMemory.size() == 0
    messageExpression: >-
      'memory is in bytes and must be at least 1Mi; write 3Gi for three GiB: '
      + variables.wrongMemory.join(', ')
  - expression: variables.wrongCompute.size() == 0
    messageExpression: >-
      'compute must be a multiple of 5 from 5 to 100, or 0: '
      + variables.wrongCompute.join(', ')
  - expression: variables.wrongShares.size() == 0
    messageExpression: >-
      'a claim consumes one of a GPU\'s shares, leave capacity shares out: '
      + variables.wrongShares.join(', ')
{{- end }}
