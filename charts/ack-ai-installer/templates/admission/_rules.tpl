{{/*
The rules on what pods ask for, for pods and for everything that carries a template of pods: written once, with the
place of the pod in the object as argument. All of these take (dict "root" $ "pod" PATH), where PATH is CEL such as
object.spec.template; what they mean is in docs/guide/admission.md.
*/}}

{{/* CEL: the resources that are ours. A list. */}}
{{- define "gpushare.admission.ours" -}}
['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'aliyun.com/gpu', 'aliyun.com/gpu-count',
 'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage']
{{- end }}

{{/* CEL: whether a container of the pod names a resource of ours in its limits. */}}
{{- define "gpushare.admission.rules.asksForGpu" -}}
({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).exists(c,
  {{ include "gpushare.admission.ours" . | nindent 2 | trim }}
  .exists(r, r in c.?resources.limits.orValue({})))
{{- end }}

{{/* CEL: whether container c uses a ResourceClaim, or kube-scheduler makes one for it. Of which device class cannot be seen here. */}}
{{- define "gpushare.admission.usesClaim" -}}
(size(c.?resources.claims.orValue([])) > 0 || c.?resources.limits.orValue({}).exists(r, r == 'gpushare.dev/share' || r.startsWith('deviceclass.resource.kubernetes.io/')))
{{- end }}

{{/* Pods that request something of ours, or use a ResourceClaim, when they are created or what is validated changes. */}}
{{- define "gpushare.admission.rules.conditions" -}}
{{- $old := .pod | replace "object" "oldObject" -}}
- name: asks-for-gpu
  expression: >-
    {{ include "gpushare.admission.rules.asksForGpu" . | nindent 4 | trim }}
    || ({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).exists(c, {{ include "gpushare.admission.usesClaim" . }})
{{- if eq .pod "object" }}
- name: is-new-or-relabelled
  expression: >-
    request.operation == 'CREATE'
    || ['aliyun.com/gpu-count', 'ack.gpushare.placement', 'gpushare.dev/gpu-per-container', 'gpushare.dev/compute-class'].exists(l,
      object.metadata.?labels[?l] != oldObject.metadata.?labels[?l])
    || {{ include "gpushare.admission.choices" . | nindent 4 | trim }}.exists(c,
      object.metadata.?annotations[?c.name] != oldObject.metadata.?annotations[?c.name])
{{- else }}
- name: has-another-template
  expression: request.operation == 'CREATE' || {{ .pod }} != {{ $old }}
{{- end }}
{{- end }}

{{/* CEL: annotations by which a pod chooses GPUs and placement policies: the pattern of their values, and the same in words. As in
src/gpushare/api/request/choice_formats.py. */}}
{{- define "gpushare.admission.choices" -}}
{{- $models := "'pattern': r'^ *([A-Za-z0-9]([A-Za-z0-9 ._-]*[A-Za-z0-9])?) *(, *([A-Za-z0-9]([A-Za-z0-9 ._-]*[A-Za-z0-9])?) *)*$', 'words': 'models of GPUs, with commas between them: A10,L4'" -}}
{{- $list := list "kepler" "maxwell" "pascal" "volta" "turing" "ampere" "ada-lovelace" "hopper" "blackwell" "rubin" -}}
{{- $any := join "|" $list -}}
{{- $architectures := printf "'pattern': r'^ *(%s) *(, *(%s) *)*$', 'words': 'architectures of GPUs, with commas between them, of %s'" $any $any (join ", " $list) -}}
{{- $memory := "'pattern': r'^[1-9][0-9]{0,7}(Mi|Gi)$', 'words': 'the memory of a GPU in Mi or Gi: 24Gi'" -}}
{{- $limits := "'pattern': r'^([1-9][0-9]{0,7}(Mi|Gi)|[a-z0-9]([-a-z0-9]*[a-z0-9])?=[1-9][0-9]{0,7}(Mi|Gi)(, *[a-z0-9]([-a-z0-9]*[a-z0-9])?=[1-9][0-9]{0,7}(Mi|Gi))*)$', 'words': 'memory in Mi or Gi, of each container or by the container names: 20Gi, or main=20Gi,side=4Gi'" -}}
{{- $uuids := "'pattern': r'^ *((GPU|MIG)-[0-9A-Za-z-]+) *(, *((GPU|MIG)-[0-9A-Za-z-]+) *)*$', 'words': 'UUIDs of GPUs, with commas between them: GPU-…,GPU-…'" -}}
{{- $policy := "'pattern': r'^(binpack|spread|fragmentation)$', 'words': 'binpack, spread or fragmentation'" -}}
[{'name': 'gpushare.dev/gpu-model', {{ $models }}},
 {'name': 'gpushare.dev/gpu-model-exclude', {{ $models }}},
 {'name': 'gpushare.dev/gpu-architecture', {{ $architectures }}},
 {'name': 'gpushare.dev/gpu-architecture-exclude', {{ $architectures }}},
 {'name': 'gpushare.dev/gpu-memory-min', {{ $memory }}},
 {'name': 'gpushare.dev/gpu-memory-max', {{ $memory }}},
 {'name': 'gpushare.dev/gpu-memory-limit', {{ $limits }}},
 {'name': 'gpushare.dev/gpu-uuid', {{ $uuids }}},
 {'name': 'gpushare.dev/gpu-uuid-exclude', {{ $uuids }}},
 {'name': 'gpushare.dev/gpu-placement', {{ $policy }}},
 {'name': 'gpushare.dev/node-placement', {{ $policy }}}]
{{- end }}

{{/* CEL: whether container c asks for memory, in whatever unit. */}}
{{- define "gpushare.admission.asksMemory" -}}
{{ include "gpushare.admission.asks" "aliyun.com/gpu-mem" }} || {{ include "gpushare.admission.asksMemoryAmount" . }}
{{- end }}

{{- define "gpushare.admission.rules.variables" -}}
- name: containers
  expression: {{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])
- name: withMemory
  expression: >-
    variables.containers.filter(c, {{ include "gpushare.admission.asksMemory" . }})
- name: withCompute
  expression: variables.containers.filter(c, {{ include "gpushare.admission.asks" "aliyun.com/gpu-core.percentage" }})
- name: count
  expression: {{ .pod }}.?metadata.?labels[?'aliyun.com/gpu-count'].orValue('1')
- name: gpus
  expression: "variables.count.matches('^[1-9][0-9]{0,3}$') ? int(variables.count) : 1"
- name: placement
  expression: {{ .pod }}.?metadata.?labels[?'ack.gpushare.placement'].orValue('require-whole-device')
- name: apart
  expression: {{ .pod }}.?metadata.?labels[?'gpushare.dev/gpu-per-container'].orValue('false')
- name: annotations
  expression: {{ .pod }}.?metadata.?annotations.orValue({})
- name: choices
  expression: >-
    {{ include "gpushare.admission.choices" . | nindent 4 | trim }}.filter(c, c.name in variables.annotations)
- name: computeClass
  expression: {{ .pod }}.?metadata.?labels[?'gpushare.dev/compute-class'].orValue('batch')
{{- end }}

{{/* Requests that can never be satisfied. */}}
{{- define "gpushare.admission.rules" -}}
{{- $rule := . -}}
failurePolicy: Fail
matchConstraints:
  {{- include "gpushare.admission.namespaces" .root | nindent 2 }}
  resourceRules:
    {{- toYaml .resources | nindent 4 }}
matchConditions:
  {{- include "gpushare.admission.rules.conditions" . | nindent 2 }}
variables:
  {{- include "gpushare.admission.rules.variables" . | nindent 2 }}
  {{- include "gpushare.admission.memoryAmounts.variables" .root | nindent 2 }}
  - name: wrongCompute
    expression: >-
      variables.containers.filter(c, 'aliyun.com/gpu-core.percentage' in c.?resources.limits.orValue({})
        && !(quantity(string(c.resources.limits['aliyun.com/gpu-core.percentage'])).isInteger()
          && quantity(string(c.resources.limits['aliyun.com/gpu-core.percentage'])).asInteger() >= 5
          && quantity(string(c.resources.limits['aliyun.com/gpu-core.percentage'])).asInteger() <= 100
          && quantity(string(c.resources.limits['aliyun.com/gpu-core.percentage'])).asInteger() % 5 == 0))
  - name: lonelyCompute
    expression: variables.withCompute.filter(c, !({{ include "gpushare.admission.asksMemory" . }}))
  - name: memoryAlone
    expression: variables.withMemory.filter(c, !{{ include "gpushare.admission.asks" "aliyun.com/gpu-core.percentage" }})
  - name: withWhole
    expression: variables.containers.filter(c, {{ include "gpushare.admission.asks" "aliyun.com/gpu" }})
  - name: withCount
    expression: variables.containers.filter(c, 'aliyun.com/gpu-count' in c.?resources.limits.orValue({}))
  - name: uneven
    expression: >-
      variables.withMemory.filter(c, {{ include "gpushare.admission.asks" "aliyun.com/gpu-mem" }} && (!quantity(string(c.resources.limits['aliyun.com/gpu-mem'])).isInteger()
        || quantity(string(c.resources.limits['aliyun.com/gpu-mem'])).asInteger() % variables.gpus != 0))
  - name: besideApart
    expression: >-
      ['aliyun.com/gpu-count', 'ack.gpushare.placement'].filter(l, {{ .pod }}.?metadata.?labels[?l].orValue('1') != '1')
  - name: early
    expression: >-
      {{ .pod }}.spec.?initContainers.orValue([]).filter(c, {{ include "gpushare.admission.asksMemory" . }})
  - name: inUnits
    expression: >-
      variables.withMemory.filter(c, {{ include "gpushare.admission.asks" "aliyun.com/gpu-mem" }})
  # Requests in MiB or percent are compared by the scheduler, once they are counted.
  - name: alike
    expression: >-
      (size(variables.inUnits) == 0 || variables.inUnits.all(c, quantity(string(c.resources.limits['aliyun.com/gpu-mem']))
        .compareTo(quantity(string(variables.inUnits[0].resources.limits['aliyun.com/gpu-mem']))) == 0))
      && (size(variables.withMemory) == 0 || variables.withMemory.all(c,
        quantity(string(c.?resources.limits[?'aliyun.com/gpu-core.percentage'].orValue('0')))
        .compareTo(quantity(string(variables.withMemory[0].?resources.limits[?'aliyun.com/gpu-core.percentage'].orValue('0')))) == 0))
  - name: hiding
    expression: >-
      variables.containers.filter(c, ({{ include "gpushare.admission.asksMemory" . }} || {{ include "gpushare.admission.usesClaim" . }})
        && c.?volumeMounts.orValue([]).exists(m, {{ include "gpushare.admission.overIsolation" . }}))
  - name: longChoices
    expression: variables.choices.filter(c, size(variables.annotations[c.name]) > 4096)
  - name: wrongChoices
    expression: variables.choices.filter(c, !variables.annotations[c.name].matches(c.pattern))
  - name: besideLimit
    expression: >-
      ['aliyun.com/gpu-count', 'ack.gpushare.placement'].filter(l, {{ .pod }}.?metadata.?labels[?l].orValue('1') != '1')
  # By container; nothing while the annotation cannot be read.
  - name: memoryLimits
    expression: >-
      !('gpushare.dev/gpu-memory-limit' in variables.annotations) || size(variables.wrongChoices) > 0 || size(variables.longChoices) > 0
      || size(variables.withMemory) == 0 ? []
      : variables.annotations['gpushare.dev/gpu-memory-limit'].contains('=')
      ? variables.annotations['gpushare.dev/gpu-memory-limit'].split(',')
        .map(e, {'name': e.trim().split('=')[0], 'most': e.trim().split('=')[1]})
      : variables.withMemory.map(c, {'name': c.name, 'most': variables.annotations['gpushare.dev/gpu-memory-limit']})
  - name: strangeLimits
    expression: variables.memoryLimits.filter(l, !variables.withMemory.exists(c, c.name == l.name))
  # In whole units, as MiB are counted. Percent is compared once it is counted, too.
  - name: requestedUnits
    expression: >-
      size(variables.memoryLimits) == 0 ? []
      : variables.withMemory.filter(c, {{ include "gpushare.admission.asks" "aliyun.com/gpu-mem" }}
          && quantity(string(c.resources.limits['aliyun.com/gpu-mem'])).isInteger())
        .map(c, {'name': dyn(c.name), 'units': dyn(quantity(string(c.resources.limits['aliyun.com/gpu-mem'])).asInteger())})
      + variables.withMemory.filter(c, !({{ include "gpushare.admission.asks" "aliyun.com/gpu-mem" }})
          && 'gpushare.dev/gpu-memory' in c.resources.limits && quantity(string(c.resources.limits['gpushare.dev/gpu-memory'])).isInteger())
        .map(c, {'name': dyn(c.name),
          'units': dyn((quantity(string(c.resources.limits['gpushare.dev/gpu-memory'])).asInteger() / 1048576 - 1) / {{ include "gpushare.unitMiB" .root }} + 1)})
  - name: lowLimits
    expression: >-
      variables.memoryLimits.map(l, variables.requestedUnits.filter(r, r.name == l.name
        && quantity(l.most).asInteger() / ({{ include "gpushare.unitMiB" .root }} * 1048576) < r.units)
        .map(r, 'container ' + r.name + ' requests ' + string(r.units * {{ include "gpushare.unitMiB" .root }}) + 'Mi and may use ' + l.most)
        .join(', '))
      .filter(t, t != '')
validations:
  {{- include "gpushare.admission.memoryAmounts.validations" .root | nindent 2 }}
  - expression: size(variables.wrongCompute) == 0
    reason: Invalid
    messageExpression: >-
      'aliyun.com/gpu-core.percentage must be a multiple of 5 from 5 to 100: '
      + variables.wrongCompute.map(c, 'container ' + c.name + ' requests '
        + string(c.resources.limits['aliyun.com/gpu-core.percentage'])).join(', ')
  - expression: size(variables.lonelyCompute) == 0
    reason: Invalid
    messageExpression: >-
      'aliyun.com/gpu-core.percentage requires aliyun.com/gpu-mem in the same container: add aliyun.com/gpu-mem to the limits of '
      + {{ include "gpushare.admission.named" "lonelyCompute" }}
  - expression: size(variables.withCompute) == 0 || size(variables.memoryAlone) == 0
    reason: Invalid
    messageExpression: >-
      'either all GPU containers of a pod request aliyun.com/gpu-core.percentage or none does: with it '
      + {{ include "gpushare.admission.named" "withCompute" }}
      + ', without it ' + {{ include "gpushare.admission.named" "memoryAlone" }}
      + '; add it to all of them, or to none'
  - expression: size(variables.withWhole) == 0 || size(variables.withMemory) == 0
    reason: Invalid
    messageExpression: >-
      'aliyun.com/gpu cannot be combined with aliyun.com/gpu-mem, because no node offers both: whole GPUs for '
      + {{ include "gpushare.admission.named" "withWhole" }}
      + ', a share for ' + {{ include "gpushare.admission.named" "withMemory" }}
      + '; use the same one in all containers'
  - expression: size(variables.withCount) == 0
    reason: Invalid
    messageExpression: >-
      'aliyun.com/gpu-count cannot be requested by containers: remove it from the limits of '
      + {{ include "gpushare.admission.named" "withCount" }}
      + ', and set the pod\'s label of that name to spread a pod over GPUs'
  - expression: size(variables.withMemory) == 0 || variables.count.matches('^[1-9][0-9]{0,3}$')
    reason: Invalid
    messageExpression: >-
      'label aliyun.com/gpu-count must be a whole number from 1 to 9999, without leading zeros: it is \''
      + variables.count + '\'; write the number of GPUs, or remove the label'
  - expression: variables.gpus == 1 || size(variables.withCompute) == 0
    reason: Invalid
    messageExpression: >-
      'label aliyun.com/gpu-count=' + variables.count + ' and aliyun.com/gpu-core.percentage exclude each other: '
      + 'remove the label, or aliyun.com/gpu-core.percentage from ' + {{ include "gpushare.admission.named" "withCompute" }}
  - expression: variables.gpus == 1 || size(variables.uneven) == 0
    reason: Invalid
    messageExpression: >-
      'label aliyun.com/gpu-count=' + variables.count + ' spreads aliyun.com/gpu-mem over ' + variables.count
      + ' GPUs equally, in whole units: '
      + variables.uneven.map(c, 'container ' + c.name + ' asks for '
        + string(c.resources.limits['aliyun.com/gpu-mem'])).join(', ')
      + '; use a multiple of ' + variables.count + ', or change the label'
  - expression: size(variables.withMemory) == 0 || variables.placement == 'require-whole-device'
    reason: Invalid
    messageExpression: >-
      'label ack.gpushare.placement accepts only the value require-whole-device: it is \'' + variables.placement
      + '\'; correct it, or remove the label'
  - expression: size(variables.withMemory) == 0 || variables.apart in ['true', 'false']
    reason: Invalid
    messageExpression: >-
      'label gpushare.dev/gpu-per-container must be \'true\' or \'false\': it is \'' + variables.apart
      + '\'; correct it, or remove the label'
  - expression: size(variables.withMemory) == 0 || variables.apart != 'true' || size(variables.besideApart) == 0
    reason: Invalid
    messageExpression: >-
      'label gpushare.dev/gpu-per-container=true gives each container its own GPU and cannot be combined with label '
      + variables.besideApart.map(l, l + '=' + {{ .pod }}.metadata.labels[l]).join(', ') + ': remove one of them'
  - expression: size(variables.withMemory) == 0 || variables.apart != 'true' || size(variables.early) == 0
    reason: Invalid
    messageExpression: >-
      'label gpushare.dev/gpu-per-container=true does not support init containers with GPU requests: '
      + {{ include "gpushare.admission.named" "early" }}
      + '; request GPUs only in regular containers, or remove the label'
  - expression: size(variables.withMemory) == 0 || variables.apart != 'true' || variables.alike
    reason: Invalid
    messageExpression: >-
      'label gpushare.dev/gpu-per-container=true requires the same request in every GPU container: '
      + variables.withMemory.map(c, 'container ' + c.name + ' asks for '
        + string(c.resources.limits[?'aliyun.com/gpu-mem'].orValue(c.resources.limits[?'gpushare.dev/gpu-memory'].orValue(
          c.resources.limits[?'gpushare.dev/gpu-memory.percentage'].orValue(''))))
        + ({{ include "gpushare.admission.asks" "aliyun.com/gpu-core.percentage" }}
          ? ' and ' + string(c.resources.limits['aliyun.com/gpu-core.percentage']) + '%' : '')).join(', ')
      + '; use equal requests, or remove the label'
  - expression: size(variables.withMemory) == 0 || variables.computeClass in ['latency', 'batch']
    reason: Invalid
    messageExpression: >-
      'label gpushare.dev/compute-class must be \'latency\' or \'batch\': it is \'' + variables.computeClass
      + '\'; correct it, or remove the label'
  - expression: size(variables.hiding) == 0
    reason: Invalid
    messageExpression: >-
      'volumes would hide the isolation files: '
      + variables.hiding.map(c, 'container ' + c.name + ' mounts '
        + c.volumeMounts.filter(m, {{ include "gpushare.admission.overIsolation" . }}).map(m, m.mountPath).join(', ')).join('; ')
      + '; use other mount paths'
  - expression: size(variables.longChoices) == 0
    reason: Invalid
    messageExpression: >-
      'annotation ' + variables.longChoices[0].name + ' has '
      + string(size(variables.annotations[variables.longChoices[0].name])) + ' characters, the maximum is 4096: shorten it'
  - expression: size(variables.wrongChoices) == 0
    reason: Invalid
    messageExpression: >-
      'annotation ' + variables.wrongChoices[0].name + ' must be ' + variables.wrongChoices[0].words + ': it is \''
      + variables.annotations[variables.wrongChoices[0].name] + '\'; correct it, or remove the annotation'
  - expression: >-
      size(variables.wrongChoices) > 0
      || !['gpushare.dev/gpu-memory-min', 'gpushare.dev/gpu-memory-max'].all(n, n in variables.annotations)
      || !quantity(variables.annotations['gpushare.dev/gpu-memory-min'])
        .isGreaterThan(quantity(variables.annotations['gpushare.dev/gpu-memory-max']))
    reason: Invalid
    messageExpression: >-
      'annotation gpushare.dev/gpu-memory-min=' + variables.annotations['gpushare.dev/gpu-memory-min']
      + ' is above gpushare.dev/gpu-memory-max=' + variables.annotations['gpushare.dev/gpu-memory-max']
      + ', so that every GPU is excluded; correct one of them'
  - expression: size(variables.memoryLimits) == 0 || size(variables.besideLimit) == 0
    reason: Invalid
    messageExpression: >-
      'annotation gpushare.dev/gpu-memory-limit is for containers with a share of one GPU, and excludes label '
      + variables.besideLimit.map(l, l + '=' + {{ .pod }}.metadata.labels[l]).join(', ') + ': remove one of them'
  - expression: size(variables.strangeLimits) == 0
    reason: Invalid
    messageExpression: >-
      'annotation gpushare.dev/gpu-memory-limit names containers that do not request GPU memory: '
      + variables.strangeLimits.map(l, 'container ' + l.name).join(', ') + '; correct it'
  - expression: size(variables.lowLimits) == 0
    reason: Invalid
    messageExpression: >-
      'annotation gpushare.dev/gpu-memory-limit is below the request: ' + variables.lowLimits.join(', ')
      + '; raise it, or remove the annotation'
  # One that was exported from a cluster is refused for the records that it carries.
  - expression: >-
      {{ .pod }}.spec.?nodeName.orValue('') == '' || size(variables.withMemory) + size(variables.withWhole) == 0
      || {{ include "gpushare.admission.records" .root | nindent 6 | trim }}.exists(n, n in {{ .pod }}.?metadata.?annotations.orValue({}))
      {{- if eq .pod "object" }}
      || request.operation != 'CREATE'
      || request.userInfo.username in {{ include "gpushare.admission.writers" .root }}
      || (request.userInfo.username.startsWith('system:node:')
        && object.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue())
      {{- end }}
    reason: Invalid
    messageExpression: >-
      'spec.nodeName is ' + {{ .pod }}.spec.nodeName + ': no scheduler would allocate a GPU to the pod; '
      + 'remove it, and select nodes with nodeSelector or affinity'
{{- end }}

{{/* CEL: whether a volume mount m lies over what the node agent puts into containers (docs/developer/isolation.md), however it is written. */}}
{{- define "gpushare.admission.overIsolation" -}}
m.mountPath.matches(r'(^|/)\.\.(/|$)|^(/|\./)*(var/+(\./+)*)?run/+(\./+)*gpushare(/|$)|^(/|\./)*etc/+(\./+)*ld\.so\.preload(/|$)|(^|/)lib(cuda|nvidia-ml)\.so[^/]*(/\.?)*$')
{{- end }}

{{/* Templates that were copied from a running pod, with its allocation record. */}}
{{- define "gpushare.admission.records.template" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    {{- toYaml .resources | nindent 4 }}
matchConditions:
  - name: carries-records
    expression: >-
      {{ include "gpushare.admission.records" . | nindent 6 | trim }}
      .exists(n, n in {{ .pod }}.?metadata.?annotations.orValue({}))
  - name: has-another-template
    expression: request.operation == 'CREATE' || {{ .pod }} != {{ .pod | replace "object" "oldObject" }}
variables:
  - name: carried
    expression: >-
      {{ include "gpushare.admission.records" . | nindent 6 | trim }}
      .filter(n, n in {{ .pod }}.?metadata.?annotations.orValue({}))
validations:
  - expression: size(variables.carried) == 0
    reason: Forbidden
    messageExpression: {{ include "gpushare.admission.carried" . }}
{{- end }}

{{/* CEL: the message about records in submitted objects. */}}
{{- define "gpushare.admission.carried" -}}
>-
      'annotations that only gpushare itself writes: ' + variables.carried.join(', ')
      + '; remove them and resubmit (manifests exported from a cluster contain them)'
{{- end }}
