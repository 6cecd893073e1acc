{{/*
Likely mistakes in manifests: valid for Kubernetes, but no program reads them or no node offers them. They are reported as
warnings and block nothing (docs/decisions/0035). src/gpushare/reasons/mistakes/ implements and explains the same.

The first templates are CEL without the optional types that Kubernetes 1.28 does not support, because the webhook's conditions
use them, too.
*/}}

{{/* CEL: whether the name of a resource looks like ours and is none. Takes the name of the variable. */}}
{{- define "gpushare.mistakes.resource" -}}
(!({{ . }} in ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'aliyun.com/gpu', 'aliyun.com/gpu-count',
  'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage', 'gpushare.dev/share'])
  && {{ . }}.matches(r'(?i)^(gpushare\.dev/|((al[iy]|ail)[a-z]*n(\.[a-z]+)*|(gpu|gup|pgu)-?share[a-z.-]*|gpsuhare\.dev)/[cv]?(gpu|gup|pgu))'))
{{- end }}

{{/* CEL: whether a label, or an annotation, of a pod looks like ours and is none. */}}
{{- define "gpushare.mistakes.label" -}}
(!({{ . }} in ['gpushare.dev/admission', 'aliyun.com/gpu-count', 'ack.gpushare.placement', 'gpushare.dev/gpu-per-container', 'gpushare.dev/compute-class', 'gpushare.dev/stands-for'])
  && {{ include "gpushare.mistakes.key" . }})
{{- end }}
{{- define "gpushare.mistakes.userAnnotations" -}}
['gpushare.dev/defragmentation', 'gpushare.dev/gang-by', 'gpushare.dev/gpu-model', 'gpushare.dev/gpu-model-exclude', 'gpushare.dev/gpu-architecture',
  'gpushare.dev/gpu-architecture-exclude', 'gpushare.dev/gpu-memory-min', 'gpushare.dev/gpu-memory-max', 'gpushare.dev/gpu-memory-limit', 'gpushare.dev/gpu-uuid',
  'gpushare.dev/gpu-uuid-exclude', 'gpushare.dev/gpu-placement', 'gpushare.dev/node-placement']
{{- end }}
{{- define "gpushare.mistakes.annotation" -}}
(!({{ . }} in {{ include "gpushare.mistakes.userAnnotations" . }}) && !({{ . }} in ['gpushare.dev/allocation', 'gpushare.dev/also-holds', 'gpushare.dev/retry',
  'gpushare.dev/requested', 'gpushare.dev/room-made', 'gpushare.dev/stands-for', 'gpushare.dev/deletion-cost',
  'gpushare.dev/unit-labels', 'gpushare.dev/refused-since', 'gpushare.dev/config-checksum'])
  && {{ include "gpushare.mistakes.key" . }})
{{- end }}
{{- define "gpushare.mistakes.key" -}}
{{ . }}.matches(r'(?i)^(gpushare\.dev/|(gpu|gup|pgu)-?(sh?are?s?|hsare|sahre|shrae|shaer)\.(d[ev]{1,2}|io|org)/.*(adm|dmi|frag|gpu|mem|core|cordon|pod|mode|place|sched|clas)|gpsuhare\.dev/|(ack|akc|cak)\.(node\.gpu|(gpu|gup|pgu)[-.]?(sh?are?s?|hsare|sahre|shrae|shaer)|gpsuhare)\.|aliyun\.com/gpu(-mem|-core\.percentage)$|(al[iy]|ail)[a-z]*n(\.[a-z]+)*/(gpu|gup|pgu)s?[-_.]?(count[a-z]?|[a-z]?c?ount|c[a-z]?o?unt|co[a-z]?u?nt|cou[a-z]?n?t|coun[a-z]?t?|ocunt|cuont|conut|coutn|num|number)$)')
{{- end }}

{{/* CEL: whether an amount of units, written so, may be none, or more than a GPU can have. A number of up to three digits that does not
begin with 0 is neither. */}}
{{- define "gpushare.mistakes.amount" -}}
!string({{ . }}).matches('^[1-9][0-9]{0,2}$')
{{- end }}

{{/* The units that a CUDA context fits into: 518 MiB, as measured on an H200, rounded up. Takes the root. */}}
{{- define "gpushare.mistakes.contextUnits" -}}
{{- $unit := include "gpushare.unitMiB" . | int -}}
{{ div (add 517 $unit) $unit }}
{{- end }}

{{/* CEL: whether amount r of container c, of a pod or template at PATH, may be less of a GPU than a CUDA context takes; in units of
1GiB none is. Takes (dict "root" $ "pod" PATH). */}}
{{- define "gpushare.mistakes.maybeSmall" -}}
{{- $least := include "gpushare.mistakes.contextUnits" .root | int -}}
{{- if ge $least 2 -}}
|| r == 'gpushare.dev/gpu-memory' || (r == 'aliyun.com/gpu-mem' && (string(c.resources.limits[r]).matches('^[1-{{ sub $least 1 }}]$')
  || (has({{ .pod }}.metadata) && has({{ .pod }}.metadata.labels) && 'aliyun.com/gpu-count' in {{ .pod }}.metadata.labels)))
{{- end }}
{{- end }}

{{/* CEL: whether it is less. Takes the root. */}}
{{- define "gpushare.mistakes.small" -}}
{{- $unit := include "gpushare.unitMiB" . | int -}}
{{- $least := include "gpushare.mistakes.contextUnits" . | int -}}
((r == 'aliyun.com/gpu-mem' && quantity(string(c.resources.limits[r])).isGreaterThan(quantity('0'))
    && quantity(string(c.resources.limits[r])).isLessThan(quantity(string(variables.gpus * {{ $least }}))))
  || (r == 'gpushare.dev/gpu-memory' && quantity(string(c.resources.limits[r])).isGreaterThan(quantity('0'))
    && !quantity(string(c.resources.limits[r])).isGreaterThan(quantity(string(variables.gpus * {{ mul (sub $least 1) $unit }}) + 'Mi'))))
{{- end }}

{{/* CEL: whether k is a label of gangs, and whether r is something of ours: a gang without such is not our business. */}}
{{- define "gpushare.mistakes.gang" -}}
k in ['pod-group.scheduling.sigs.k8s.io/name', 'pod-group.scheduling.sigs.k8s.io/min-available']
{{- end }}
{{- define "gpushare.mistakes.asks" -}}
(r.startsWith('aliyun.com/gpu') || r.startsWith('gpushare.dev/gpu-memory'))
{{- end }}

{{/* CEL: the variables by which a node gives a container its GPU, or its limits. Those of the manifest replace them. */}}
{{- define "gpushare.mistakes.givenByNode" -}}
['NVIDIA_VISIBLE_DEVICES', 'CUDA_MPS_PIPE_DIRECTORY', 'CUDA_MPS_PINNED_DEVICE_MEM_LIMIT', 'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE']
{{- end }}

{{/* CEL: whether a label by which nodes are chosen is one that no node has, and whether its value is. Takes the key; (dict "key" KEY "value" VALUE). */}}
{{- define "gpushare.mistakes.nodeKey" -}}
({{ . }}.startsWith('ack.node.gpu.') && !({{ . }} in ['ack.node.gpu.schedule', 'ack.node.gpu.placement', 'ack.node.gpu.max-pod']))
{{- end }}
{{- define "gpushare.mistakes.nodeValue" -}}
(({{ .key }} == 'ack.node.gpu.schedule' && !({{ .value }} in ['default', 'share', 'cgpu', 'core_mem', 'mps', 'topology', 'dra']))
  || ({{ .key }} == 'ack.node.gpu.placement' && !({{ .value }} in ['binpack', 'spread', 'fragmentation'])))
{{- end }}

{{/* CEL: what to write for such a value: the one from which it differs in case, - and _ alone, else all that there are. Takes
(dict "key" KEY "value" VALUE). */}}
{{- define "gpushare.mistakes.nodeValues" -}}
{{- $plain := printf "%s.lowerAscii().replace('-', '').replace('_', '')" .value -}}
({{ .key }} == 'ack.node.gpu.schedule'
  ? ({{ $plain }} in ['default', 'share', 'cgpu', 'mps', 'topology', 'dra'] ? ' (write ' + {{ $plain }} + ')'
    : {{ $plain }} == 'coremem' ? ' (write core_mem)'
    : ' (write default, share, cgpu, core_mem, mps, topology or dra)')
  : ({{ $plain }} in ['binpack', 'spread', 'fragmentation'] ? ' (write ' + {{ $plain }} + ')'
    : ' (write binpack, spread or fragmentation)'))
{{- end }}

{{/* CEL: whether expression e of a node affinity has such a key or value. */}}
{{- define "gpushare.mistakes.expression" -}}
({{ include "gpushare.mistakes.nodeKey" "e.key" }}
  || (e.operator in ['In', 'NotIn'] && has(e.values) && e.values != null
    && e.values.exists(v, {{ include "gpushare.mistakes.nodeValue" (dict "key" "e.key" "value" "v") | nindent 4 | trim }})))
{{- end }}

{{/* CEL: whether a node affinity that is there has such an expression. Takes its path. */}}
{{- define "gpushare.mistakes.affinity" -}}
((has({{ . }}.requiredDuringSchedulingIgnoredDuringExecution) && {{ . }}.requiredDuringSchedulingIgnoredDuringExecution != null
    && {{ . }}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.exists(t,
      has(t.matchExpressions) && t.matchExpressions != null && t.matchExpressions.exists(e, {{ include "gpushare.mistakes.expression" . | nindent 6 | trim }})))
  || (has({{ . }}.preferredDuringSchedulingIgnoredDuringExecution) && {{ . }}.preferredDuringSchedulingIgnoredDuringExecution != null
    && {{ . }}.preferredDuringSchedulingIgnoredDuringExecution.exists(p, has(p.preference.matchExpressions) && p.preference.matchExpressions != null
      && p.preference.matchExpressions.exists(e, {{ include "gpushare.mistakes.expression" . | nindent 6 | trim }}))))
{{- end }}

{{/* CEL: what of the expressions of a term no node can have, as a text. Takes the term. */}}
{{- define "gpushare.mistakes.unmetIn" -}}
{{ . }}.?matchExpressions.orValue([]).map(e, {{ include "gpushare.mistakes.nodeKey" "e.key" }}
    ? e.key + ' (write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod)'
    : !(e.operator in ['In', 'NotIn']) ? ''
    : e.?values.orValue([]).filter(v, {{ include "gpushare.mistakes.nodeValue" (dict "key" "e.key" "value" "v") | nindent 6 | trim }})
      .map(v, e.key + '=' + v + {{ include "gpushare.mistakes.nodeValues" (dict "key" "e.key" "value" "v") | nindent 6 | trim }}).join(', '))
  .filter(s, s != '').join(', ')
{{- end }}

{{/* CEL: whether the name of a scheduler is nearly ours. Takes the name. */}}
{{- define "gpushare.mistakes.scheduler" -}}
({{ . }} != 'ack-co-scheduler'
  && {{ . }}.matches(r'(?i)^(ac?k[-_.]?(gpu[-_.]?)?(co|gpu-?share)?[-_.]?s(ch?|h)ed[a-z]*|(ack[-_.]?)?co[-_.]?s(ch?|h)ed[a-z]*|gpu-?share(-?s(ch?|h)ed[a-z]*)?)$'))
{{- end }}

{{/* CEL: what to write for resource r. */}}
{{- define "gpushare.mistakes.meant" -}}
(r.matches('(?i)mem.*(percent|ratio)') ? 'gpushare.dev/gpu-memory.percentage'
  : r.matches('(?i)mem') ? 'aliyun.com/gpu-mem in units, or gpushare.dev/gpu-memory such as 6Gi'
  : r.matches('(?i)core|percent|comput') ? 'aliyun.com/gpu-core.percentage'
  : r.matches('(?i)count|num') ? 'aliyun.com/gpu, or the pod\'s label aliyun.com/gpu-count'
  : 'aliyun.com/gpu-mem for a share, or aliyun.com/gpu for a whole one')
{{- end }}

{{/* CEL: what to do instead with label or annotation k. */}}
{{- define "gpushare.mistakes.instead" -}}
(k in ['gpushare.dev/admission', 'aliyun.com/gpu-count', 'ack.gpushare.placement', 'gpushare.dev/gpu-per-container', 'gpushare.dev/compute-class'] ? 'it is a label: write it under labels'
  : k in {{ include "gpushare.mistakes.userAnnotations" . }} ? 'it is an annotation: write it under annotations'
  : k in ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage']
    ? 'it is a resource: write it in the limits of a container'
  : k.startsWith('ack.node.gpu.') ? 'it looks like a label of nodes: to select nodes, write it under nodeSelector'
  : k in ['gpushare.dev/max-pods-per-node', 'gpushare.dev/described', 'gpushare.dev/agent-port', 'gpushare.dev/cordoned-gpus',
    'gpushare.dev/devices', 'gpushare.dev/isolation'] ? 'it belongs on nodes'
  : k.matches('(?i)^(ack|akc|cak)|plac') ? 'write label ack.gpushare.placement'
  : k.matches('(?i)^a|gpus?[-_.]?(count|num)') ? 'write label aliyun.com/gpu-count'
  : k.matches('(?i)gpu.?per|contain') ? 'write label gpushare.dev/gpu-per-container'
  : k.matches('(?i)adm|dmi|ssion') ? 'write label gpushare.dev/admission'
  : k.matches('(?i)cla|clsas|ss$|latenc') ? 'write label gpushare.dev/compute-class'
  : k.matches('(?i)frag') ? 'write annotation gpushare.dev/defragmentation'
  : k.matches('(?i)mem|core') ? 'memory and compute are resources: write them in the limits of a container'
  : 'there are labels gpushare.dev/gpu-per-container, gpushare.dev/compute-class and gpushare.dev/admission, '
    + 'and annotation gpushare.dev/defragmentation')
{{- end }}

{{/* The policy. Takes (dict "root" $ "pod" PATH "resources" LIST), as the rules on requests do. */}}
{{- define "gpushare.admission.mistakes" -}}
{{- $old := .pod | replace "object" "oldObject" -}}
# Warns only, so it must not block anything if it fails.
failurePolicy: Ignore
matchConstraints:
  {{- include "gpushare.admission.namespaces" .root | nindent 2 }}
  resourceRules:
    {{- toYaml .resources | nindent 4 }}
matchConditions:
  - name: has-what-looks-like-ours
    expression: >-
      ({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).exists(c,
        c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.mistakes.resource" "r" | nindent 10 | trim }}
          || (r == 'aliyun.com/gpu-mem' && {{ include "gpushare.mistakes.amount" "c.resources.limits[r]" }})
          {{ include "gpushare.mistakes.maybeSmall" (dict "root" .root "pod" .pod) | nindent 10 | trim }}
          || ({{ include "gpushare.mistakes.asks" . }} && c.?env.orValue([]).exists(e, e.name in {{ include "gpushare.mistakes.givenByNode" . }}))))
      || {{ .pod }}.?metadata.?labels.orValue({}).exists(k,
        k == 'gpushare.dev/admission' || {{ include "gpushare.mistakes.label" "k" | nindent 8 | trim }})
      || {{ .pod }}.?metadata.?annotations.orValue({}).exists(k,
        k == 'gpushare.dev/defragmentation' || {{ include "gpushare.mistakes.annotation" "k" | nindent 8 | trim }})
      || {{ .pod }}.spec.?nodeSelector.orValue({}).exists(k,
        {{ include "gpushare.mistakes.nodeKey" "k" }}
        || {{ include "gpushare.mistakes.nodeValue" (dict "key" "k" "value" (print .pod ".spec.nodeSelector[k]")) | nindent 8 | trim }})
      || ({{ .pod }}.spec.?affinity.?nodeAffinity.hasValue() && {{ include "gpushare.mistakes.affinity" (print .pod ".spec.affinity.nodeAffinity") | nindent 8 | trim }})
      || (({{ .pod }}.?metadata.?labels.orValue({}).exists(k, {{ include "gpushare.mistakes.gang" . }})
          || {{ include "gpushare.mistakes.scheduler" (print .pod ".spec.?schedulerName.orValue('')") | nindent 10 | trim }})
        && ({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).exists(c,
          c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.mistakes.asks" . }})))
  {{- if eq .pod "object" }}
  - name: is-new
    expression: request.operation == 'CREATE'
  {{- else }}
  - name: has-another-template
    expression: request.operation == 'CREATE' || {{ .pod }} != {{ $old }}
  {{- end }}
variables:
  - name: containers
    expression: {{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])
  - name: labels
    expression: {{ .pod }}.?metadata.?labels.orValue({})
  - name: annotations
    expression: {{ .pod }}.?metadata.?annotations.orValue({})
  - name: count
    expression: variables.labels[?'aliyun.com/gpu-count'].orValue('1')
  - name: gpus
    expression: "variables.count.matches('^[1-9][0-9]{0,3}$') ? int(variables.count) : 1"
  - name: unknown
    expression: >-
      variables.containers.filter(c, c.?resources.limits.orValue({}).exists(r,
        {{ include "gpushare.mistakes.resource" "r" | nindent 8 | trim }}))
  # What admission has counted itself was asked for in clear units.
  - name: tooLarge
    expression: >-
      'gpushare.dev/requested' in variables.annotations ? []
      : variables.containers.filter(c, quantity(string(c.?resources.limits[?'aliyun.com/gpu-mem'].orValue('0')))
        .isGreaterThan(quantity(string(variables.gpus * {{ div 1048576 (include "gpushare.unitMiB" .root | int) }}))))
  - name: nothing
    expression: >-
      variables.containers.filter(c, quantity(string(c.?resources.limits[?'aliyun.com/gpu-mem'].orValue('1'))).compareTo(quantity('0')) == 0
        && quantity(string(c.?resources.limits[?'aliyun.com/gpu'].orValue('0'))).compareTo(quantity('0')) == 0
        && !c.?resources.limits.orValue({}).exists(r,
          r in ['aliyun.com/gpu-core.percentage', 'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage']))
  {{- $least := include "gpushare.mistakes.contextUnits" .root | int }}
  {{- if ge $least 2 }}
  # A GPU that is given whole is no share; MiB are rounded up to units.
  - name: small
    expression: >-
      variables.labels[?'ack.gpushare.placement'].orValue('') == 'require-whole-device' ? []
      : variables.containers.filter(c, c.?resources.limits.orValue({}).exists(r,
        {{ include "gpushare.mistakes.small" .root | nindent 8 | trim }}))
  {{- end }}
  - name: replacing
    expression: >-
      variables.containers.filter(c, c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.mistakes.asks" . }})
        && c.?env.orValue([]).exists(e, e.name in {{ include "gpushare.mistakes.givenByNode" . }}))
  - name: asks
    expression: >-
      variables.containers.exists(c, c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.mistakes.asks" . }}))
  - name: scheduler
    expression: {{ .pod }}.spec.?schedulerName.orValue('')
  - name: selector
    expression: {{ .pod }}.spec.?nodeSelector.orValue({})
  - name: unmet
    expression: >-
      variables.selector.filter(k, {{ include "gpushare.mistakes.nodeKey" "k" }})
      .map(k, k + ' (write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod)')
      + ['ack.node.gpu.schedule', 'ack.node.gpu.placement'].filter(k, k in variables.selector
        && {{ include "gpushare.mistakes.nodeValue" (dict "key" "k" "value" "variables.selector[k]") | nindent 8 | trim }})
      .map(k, k + '=' + variables.selector[k] + {{ include "gpushare.mistakes.nodeValues" (dict "key" "k" "value" "variables.selector[k]") | nindent 6 | trim }})
  # In full, not by a variable: one that is optional is read as if nothing were there.
  - name: unmetInTerms
    expression: >-
      {{ .pod }}.spec.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])
      .map(t, {{ include "gpushare.mistakes.unmetIn" "t" | nindent 6 | trim }}).filter(s, s != '')
      + {{ .pod }}.spec.?affinity.?nodeAffinity.?preferredDuringSchedulingIgnoredDuringExecution.orValue([])
      .map(p, {{ include "gpushare.mistakes.unmetIn" "p.preference" | nindent 6 | trim }}).filter(s, s != '')
  - name: gang
    expression: variables.labels[?'pod-group.scheduling.sigs.k8s.io/name'].orValue('')
  - name: least
    expression: variables.labels[?'pod-group.scheduling.sigs.k8s.io/min-available'].orValue('')
  - name: unread
    expression: >-
      variables.labels.filter(k, {{ include "gpushare.mistakes.label" "k" | nindent 6 | trim }})
      .map(k, 'label ' + k + ' (' + {{ include "gpushare.mistakes.instead" . | nindent 6 | trim }} + ')')
      + variables.annotations.filter(k, {{ include "gpushare.mistakes.annotation" "k" | nindent 6 | trim }})
      .map(k, 'annotation ' + k + ' (' + {{ include "gpushare.mistakes.instead" . | nindent 6 | trim }} + ')')
validations:
  - expression: size(variables.unknown) == 0
    messageExpression: >-
      'unknown resources, which no node offers, so the pod stays pending: '
      + variables.unknown.map(c, 'container ' + c.name + ' asks for '
        + c.resources.limits.filter(r, {{ include "gpushare.mistakes.resource" "r" | nindent 8 | trim }})
        .map(r, r + ' (write ' + {{ include "gpushare.mistakes.meant" . | nindent 8 | trim }} + ')').join(' and ')).join(', ')
  - expression: size(variables.tooLarge) == 0
    messageExpression: >-
      'aliyun.com/gpu-mem is a number of units of {{ include "gpushare.unitName" .root }}, without Mi or Gi, and no GPU has that many: '
      + variables.tooLarge.map(c, 'container ' + c.name + ' asks for '
        + string(c.resources.limits['aliyun.com/gpu-mem'])).join(', ')
      + '; write the number of units, or gpushare.dev/gpu-memory such as 6144Mi or 6Gi'
  - expression: size(variables.nothing) == 0
    messageExpression: >-
      'aliyun.com/gpu-mem: 0 requests nothing: no share of a GPU is allocated, and no limit is enforced: '
      + variables.nothing.map(c, 'container ' + c.name).join(', ') + '; write the number of units, or leave it out'
  {{- if ge $least 2 }}
  - expression: size(variables.small) == 0
    messageExpression: >-
      'the request may be too small for a CUDA context, which takes several hundred MiB (518 on an H200): '
      + variables.small.map(c, 'container ' + c.name + ' asks for '
        + c.resources.limits.filter(r, {{ include "gpushare.mistakes.small" .root | nindent 8 | trim }})
        .map(r, r + ': ' + string(c.resources.limits[r])).join(' and ')).join(', ') + '; a program limited to that may not start: request aliyun.com/gpu-mem {{ $least }} or more, '
      + 'in units of {{ include "gpushare.unitName" .root }}'
  {{- end }}
  - expression: size(variables.replacing) == 0
    messageExpression: >-
      'variables under env override those that the node sets to assign the GPU share: '
      + variables.replacing.map(c, 'container ' + c.name + ' sets '
        + c.env.filter(e, e.name in {{ include "gpushare.mistakes.givenByNode" . }}).map(e, e.name).join(' and ')).join(', ')
      + '; remove them'
  - expression: >-
      !variables.asks || variables.gang == '' || variables.least.matches('^0*([1-9][0-9]{0,4}|100000)$')
    messageExpression: >-
      'label pod-group.scheduling.sigs.k8s.io/name=' + variables.gang
      + ' needs pod-group.scheduling.sigs.k8s.io/min-available as well, the number of pods that must run together, from 1 to '
      + '100000: it is \'' + variables.least + '\'; set both on every pod'
  - expression: >-
      !variables.asks || variables.gang != '' || !('pod-group.scheduling.sigs.k8s.io/min-available' in variables.labels)
    message: >-
      label pod-group.scheduling.sigs.k8s.io/min-available has no effect without label
      pod-group.scheduling.sigs.k8s.io/name, the gang's name: the pod is scheduled by itself
  - expression: >-
      !variables.asks || !{{ include "gpushare.mistakes.scheduler" "variables.scheduler" | nindent 6 | trim }}
    messageExpression: >-
      'schedulerName ' + variables.scheduler + ' is similar to ack-co-scheduler, but gpushare ignores it: '
      + 'write ack-co-scheduler, or leave it out'
  - expression: size(variables.unread) == 0
    messageExpression: >-
      'unknown labels or annotations of a pod: ' + variables.unread.join(', ')
  - expression: variables.labels[?'gpushare.dev/admission'].orValue('disabled') in ['disabled', 'enabled']
    messageExpression: >-
      'label gpushare.dev/admission keeps the pod\'s scheduler if it is \'disabled\', and has no effect otherwise: it is \''
      + variables.labels['gpushare.dev/admission'] + '\'; write disabled, or remove the label'
  - expression: variables.annotations[?'gpushare.dev/defragmentation'].orValue('true') in ['true', 'false']
    message: >-
      annotation gpushare.dev/defragmentation is neither 'true' nor 'false', so the pod is never moved; write one of
      them, or remove it
  - expression: size(variables.unmet) == 0
    messageExpression: >-
      'nodeSelector names labels that no node can have: ' + variables.unmet.join(', ')
  - expression: size(variables.unmetInTerms) == 0
    messageExpression: >-
      'node affinity names labels that no node can have: ' + variables.unmetInTerms.join(', ')
{{- end }}

{{/* CEL: whether a pod that has a node is given another label that is read when it is placed, and then alone; without optional types. */}}
{{- define "gpushare.mistakes.placedBy" -}}
['aliyun.com/gpu-count', 'ack.gpushare.placement', 'gpushare.dev/gpu-per-container', 'gpushare.dev/compute-class']
{{- end }}
{{- define "gpushare.mistakes.relabelled" -}}
has(object.spec.nodeName) && object.spec.nodeName != ''
&& {{ include "gpushare.webhook.changed" (dict "place" "labels" "names" (include "gpushare.mistakes.placedBy" .)) }}
{{- end }}

{{/* The policy on pods that have a node. Takes the root. */}}
{{- define "gpushare.admission.mistakes.bound" -}}
failurePolicy: Ignore
matchConstraints:
  {{- include "gpushare.admission.namespaces" . | nindent 2 }}
  resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}
matchConditions:
  - name: has-a-node-and-another-label
    expression: >-
      {{ include "gpushare.mistakes.relabelled" . | nindent 6 | trim }}
  - name: asks-for-gpu
    expression: >-
      {{ include "gpushare.webhook.asks" "object" | nindent 6 | trim }}
validations:
  - expression: "false"
    messageExpression: >-
      'changes that have no effect on a pod that already has a node: '
      + {{ include "gpushare.mistakes.placedBy" . }}.filter(k, object.?metadata.?labels.orValue({})[?k] != oldObject.?metadata.?labels.orValue({})[?k])
        .map(k, 'label ' + k).join(', ')
      + '; change the pod\'s template and recreate the pod'
{{- end }}

{{/* As the policy's condition, for the webhook: a list of containers, and the labels and annotations, of a pod or template at PATH. Takes
(dict "root" $ "pod" PATH), the list of containers its NAME, too ("list"). */}}
{{- define "gpushare.webhook.mistakesIn" -}}
(has({{ .pod }}.spec.{{ .list }}) && {{ .pod }}.spec.{{ .list }} != null && {{ .pod }}.spec.{{ .list }}.exists(c, has(c.resources) && has(c.resources.limits)
  && c.resources.limits.exists(r, {{ include "gpushare.mistakes.resource" "r" | nindent 4 | trim }}
    || (r == 'aliyun.com/gpu-mem' && {{ include "gpushare.mistakes.amount" "c.resources.limits[r]" }})
    {{ include "gpushare.mistakes.maybeSmall" (dict "root" .root "pod" .pod) | nindent 4 | trim }}
    || ({{ include "gpushare.mistakes.asks" . }} && has(c.env) && c.env != null
      && c.env.exists(e, e.name in {{ include "gpushare.mistakes.givenByNode" . }})))))
{{- end }}
{{- define "gpushare.webhook.mistakes" -}}
{{ include "gpushare.webhook.mistakesIn" (dict "root" .root "pod" .pod "list" "containers") }}
|| {{ include "gpushare.webhook.mistakesIn" (dict "root" .root "pod" .pod "list" "initContainers") }}
{{- with .pod }}
|| (has({{ . }}.metadata) && has({{ . }}.metadata.labels) && {{ . }}.metadata.labels.exists(k,
  k == 'gpushare.dev/admission' || {{ include "gpushare.mistakes.label" "k" | nindent 2 | trim }}))
|| (has({{ . }}.metadata) && has({{ . }}.metadata.annotations) && {{ . }}.metadata.annotations.exists(k,
  k == 'gpushare.dev/defragmentation' || {{ include "gpushare.mistakes.annotation" "k" | nindent 2 | trim }}))
|| (has({{ . }}.spec.nodeSelector) && {{ . }}.spec.nodeSelector != null && {{ . }}.spec.nodeSelector.exists(k,
  {{ include "gpushare.mistakes.nodeKey" "k" }}
  || {{ include "gpushare.mistakes.nodeValue" (dict "key" "k" "value" (print . ".spec.nodeSelector[k]")) | nindent 2 | trim }}))
|| (has({{ . }}.spec.affinity) && {{ . }}.spec.affinity != null && has({{ . }}.spec.affinity.nodeAffinity) && {{ . }}.spec.affinity.nodeAffinity != null
  && {{ include "gpushare.mistakes.affinity" (print . ".spec.affinity.nodeAffinity") | nindent 2 | trim }})
|| (((has({{ . }}.metadata) && has({{ . }}.metadata.labels) && {{ . }}.metadata.labels.exists(k, {{ include "gpushare.mistakes.gang" . }}))
    || (has({{ . }}.spec.schedulerName) && {{ include "gpushare.mistakes.scheduler" (print . ".spec.schedulerName") | nindent 4 | trim }}))
  && ({{ include "gpushare.webhook.asks" . }}))
{{- end }}
{{- end }}
