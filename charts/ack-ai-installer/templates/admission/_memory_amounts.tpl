{{/*
Requests in MiB or percent: gpushare.dev/gpu-memory in bytes, gpushare.dev/gpu-memory.percentage of a reference GPU
(docs/decisions/0021). CEL for the rules on requests, and for the policy that converts them to units;
src/gpushare/admission/rules/unit_rules.py implements and explains the same.
*/}}

{{/* MiB of one unit, and of the reference GPU for percent. */}}
{{- define "gpushare.unitMiB" -}}
{{- if has .Values.gpuMemoryUnit (list "128MiB" "MiB") }}128{{ else }}1024{{ end -}}
{{- end }}
{{- define "gpushare.unitName" -}}
{{- if eq (include "gpushare.unitMiB" .) "128" }}128MiB{{ else }}1GiB{{ end -}}
{{- end }}
{{- define "gpushare.referenceUnits" -}}
{{ div .Values.admission.referenceGpuMemoryMiB (include "gpushare.unitMiB" . | int) }}
{{- end }}

{{/* CEL: whether container c requests memory in MiB or percent. */}}
{{- define "gpushare.admission.asksMemoryAmount" -}}
['gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage'].exists(r, r in c.?resources.limits.orValue({}))
{{- end }}

{{/* CEL: whether that is among its requests too, as the API server fills them in. */}}
{{- define "gpushare.admission.requestsMemoryAmount" -}}
['gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage'].exists(r, r in c.?resources.requests.orValue({}))
{{- end }}

{{/* CEL: the amount of a resource that is in the limits of container c. */}}
{{- define "gpushare.admission.amount" -}}
quantity(string(c.resources.limits['{{ . }}']))
{{- end }}

{{/* The containers that break a rule on requests in MiB or percent, a variable for each rule. Needs the variable containers. */}}
{{- define "gpushare.admission.memoryAmounts.variables" -}}
{{- $memory := include "gpushare.admission.amount" "gpushare.dev/gpu-memory" -}}
{{- $percent := include "gpushare.admission.amount" "gpushare.dev/gpu-memory.percentage" -}}
- name: noMib
  expression: >-
    variables.containers.filter(c, 'gpushare.dev/gpu-memory' in c.?resources.limits.orValue({})
      && !({{ $memory }}.isInteger() && {{ $memory }}.asInteger() >= 1048576
        && {{ $memory }}.asInteger() <= 17592186044416 && {{ $memory }}.asInteger() % 1048576 == 0))
- name: noPercent
  expression: >-
    variables.containers.filter(c, 'gpushare.dev/gpu-memory.percentage' in c.?resources.limits.orValue({})
      && !({{ $percent }}.isInteger() && {{ $percent }}.asInteger() >= 1 && {{ $percent }}.asInteger() <= 100))
- name: inTwoWays
  expression: >-
    variables.containers.filter(c,
      size(['aliyun.com/gpu-mem', 'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage']
        .filter(r, r in c.?resources.limits.orValue({}))) > 1)
- name: withoutReference
  expression: >-
    {{ include "gpushare.referenceUnits" . }} > 0 ? [] : variables.containers.filter(c,
      'gpushare.dev/gpu-memory.percentage' in c.?resources.limits.orValue({}))
- name: lessThanAUnit
  expression: >-
    size(variables.noPercent) > 0 ? [] : variables.containers.filter(c,
      'gpushare.dev/gpu-memory.percentage' in c.?resources.limits.orValue({})
      && {{ $percent }}.asInteger() * {{ include "gpushare.referenceUnits" . }} < 100)
{{- end }}

{{- define "gpushare.admission.memoryAmounts.validations" -}}
- expression: size(variables.noMib) == 0
  reason: Invalid
  messageExpression: >-
    'gpushare.dev/gpu-memory must be a whole number of MiB up to 16Ti, such as 6144Mi or 6Gi: '
    + variables.noMib.map(c, 'container ' + c.name + ' requests '
      + string(c.resources.limits['gpushare.dev/gpu-memory'])).join(', ')
- expression: size(variables.noPercent) == 0
  reason: Invalid
  messageExpression: >-
    'gpushare.dev/gpu-memory.percentage must be a whole number from 1 to 100: '
    + variables.noPercent.map(c, 'container ' + c.name + ' requests '
      + string(c.resources.limits['gpushare.dev/gpu-memory.percentage'])).join(', ')
- expression: size(variables.inTwoWays) == 0
  reason: Invalid
  messageExpression: >-
    'GPU memory must be requested in only one way per container: '
    + variables.inTwoWays.map(c, 'container ' + c.name + ' requests '
      + ['aliyun.com/gpu-mem', 'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage']
        .filter(r, r in c.resources.limits).join(' and ')).join(', ')
    + '; keep one of them'
- expression: size(variables.withoutReference) == 0
  reason: Invalid
  messageExpression: >-
    'gpushare.dev/gpu-memory.percentage requires a reference GPU size, which is not configured in this cluster '
    + '(chart value admission.referenceGpuMemoryMiB): request gpushare.dev/gpu-memory in '
    + {{ include "gpushare.admission.named" "withoutReference" }}
- expression: size(variables.lessThanAUnit) == 0
  reason: Invalid
  messageExpression: >-
    'gpushare.dev/gpu-memory.percentage is less than one unit of {{ include "gpushare.unitName" . }} on a GPU of '
    + '{{ .Values.admission.referenceGpuMemoryMiB | int }} MiB: '
    + variables.lessThanAUnit.map(c, 'container ' + c.name + ' requests '
      + string(c.resources.limits['gpushare.dev/gpu-memory.percentage'])).join(', ')
    + '; request {{ include "gpushare.leastPercent" . }} or more'
{{- end }}

{{/* The smallest percentage that amounts to a unit: above 100 if the reference GPU has none. */}}
{{- define "gpushare.leastPercent" -}}
{{- $units := include "gpushare.referenceUnits" . | int -}}
{{- if $units }}{{ div (add 99 $units) $units }}{{ else }}101{{ end -}}
{{- end }}

{{/* CEL: how a container c of the list at PATH is addressed by a JSON patch. */}}
{{- define "gpushare.admission.memoryAmounts.path" -}}
'/spec/{{ . }}/' + string(object.spec.{{ . }}.map(one, one.name).indexOf(c.name)) + '/resources/'
{{- end }}

{{/* CEL: the resource that container c requests in MiB or percent, as a step of a JSON patch's path. */}}
{{- define "gpushare.admission.memoryAmounts.step" -}}
('gpushare.dev/gpu-memory' in c.resources.limits ? 'gpushare.dev~1gpu-memory' : 'gpushare.dev~1gpu-memory.percentage')
{{- end }}

{{/* CEL: the request of container c in units: MiB rounded up, percent rounded down, as many on each GPU. */}}
{{- define "gpushare.admission.memoryAmounts.units" -}}
{{- $memory := include "gpushare.admission.amount" "gpushare.dev/gpu-memory" -}}
{{- $percent := include "gpushare.admission.amount" "gpushare.dev/gpu-memory.percentage" -}}
string(variables.gpus * ('gpushare.dev/gpu-memory' in c.resources.limits
  ? ({{ $memory }}.asInteger() / 1048576 - 1) / ({{ include "gpushare.unitMiB" . }} * variables.gpus) + 1
  : {{ $percent }}.asInteger() * {{ include "gpushare.referenceUnits" . }} / 100))
{{- end }}

{{/* CEL: the JSON patch for one list of containers. Takes (dict "root" $ "list" NAME "asking" VARIABLE). */}}
{{- define "gpushare.admission.memoryAmounts.patch" -}}
{{- $path := include "gpushare.admission.memoryAmounts.path" .list -}}
{{- $step := include "gpushare.admission.memoryAmounts.step" . -}}
{{- $units := include "gpushare.admission.memoryAmounts.units" .root -}}
{{- range $n, $amounts := list "limits" "requests" }}
{{- if $n }}
+ {{ end -}}
{{- $asking := printf "variables.%s" $.asking -}}
{{- if $n }}{{ $asking = printf "variables.%s.filter(c, %s)" $.asking (include "gpushare.admission.requestsMemoryAmount" $) }}{{ end -}}
{{ $asking }}.map(c, JSONPatch{op: 'remove', path: {{ $path }} + '{{ $amounts }}/' + {{ $step }}})
+ {{ $asking }}.map(c, JSONPatch{op: 'add', path: {{ $path }} + '{{ $amounts }}/aliyun.com~1gpu-mem',
    value: {{ $units | indent 4 | trim }}})
{{- end }}
{{- end }}

{{/* The policy that converts them to units. */}}
{{- define "gpushare.admission.memoryAmounts" -}}
failurePolicy: Fail
# GPU containers that later webhooks add are covered, too.
reinvocationPolicy: IfNeeded
matchConstraints:
  {{- include "gpushare.admission.namespaces" . | nindent 2 }}
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
matchConditions:
  - name: requests-memory-amount
    expression: >-
      (object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
        {{ include "gpushare.admission.asksMemoryAmount" . }})
variables:
  - name: containers
    expression: object.spec.containers + object.spec.?initContainers.orValue([])
  {{- include "gpushare.admission.memoryAmounts.variables" . | nindent 2 }}
  # Requests that differ from limits: left for Kubernetes to reject.
  - name: differing
    expression: >-
      variables.containers.filter(c, ['gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage'].exists(r,
        r in c.?resources.requests.orValue({}) && (!(r in c.?resources.limits.orValue({}))
          || string(c.resources.requests[r]) != string(c.resources.limits[r]))))
  # Invalid requests are left as they are, and rejected by the rules on requests.
  - name: clear
    expression: >-
      size(variables.noMib) + size(variables.noPercent) + size(variables.inTwoWays) + size(variables.withoutReference)
      + size(variables.lessThanAUnit) + size(variables.differing) == 0
  - name: count
    expression: object.metadata.?labels[?'aliyun.com/gpu-count'].orValue('1')
  - name: gpus
    expression: "variables.count.matches('^[1-9][0-9]{0,3}$') ? int(variables.count) : 1"
  - name: apps
    expression: >-
      variables.clear ? object.spec.containers.filter(c, {{ include "gpushare.admission.asksMemoryAmount" . }}) : []
  - name: inits
    expression: >-
      variables.clear ? object.spec.?initContainers.orValue([]).filter(c,
        {{ include "gpushare.admission.asksMemoryAmount" . }}) : []
  # As src/gpushare/api/request/unit_conversion.py writes and reads it.
  - name: note
    expression: >-
      '{"unitMib":{{ include "gpushare.unitMiB" . }},"cardMib":{{ .Values.admission.referenceGpuMemoryMiB | int }},"containers":{'
      + (variables.apps + variables.inits).map(c, '"' + c.name + '":"'
        + ('gpushare.dev/gpu-memory' in c.resources.limits
          ? string({{ include "gpushare.admission.amount" "gpushare.dev/gpu-memory" }}.asInteger() / 1048576) + 'Mi'
          : string({{ include "gpushare.admission.amount" "gpushare.dev/gpu-memory.percentage" }}.asInteger()) + '%')
        + '"').join(',') + '}}'
mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        {{ include "gpushare.admission.memoryAmounts.patch" (dict "root" . "list" "containers" "asking" "apps") | nindent 8 | trim }}
        + {{ include "gpushare.admission.memoryAmounts.patch" (dict "root" . "list" "initContainers" "asking" "inits") | nindent 8 | trim }}
        + (variables.clear && !has(object.metadata.annotations)
          ? [JSONPatch{op: 'add', path: '/metadata/annotations', value: {}}] : [])
        + (variables.clear ? [JSONPatch{op: 'add', path: '/metadata/annotations/gpushare.dev~1requested',
          value: variables.note}] : [])
{{- end }}
