{{/*
Slips in what pods say: valid for Kubernetes, but read by nobody or served by no node. They are told as warnings and hold
nothing up (docs/decisions/0035). What each means is in src/gpushare/model/slips.py, which says the same.

The first templates are CEL without the optional types that Kubernetes 1.28 does not know: the webhook's conditions are made
of them, too.
*/}}

{{/* CEL: whether the name of a resource looks like ours and is none. Takes the name of the variable. */}}
{{- define "gpushare.slips.resource" -}}
(!({{ . }} in ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'aliyun.com/gpu', 'aliyun.com/gpu-count',
  'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage'])
  && {{ . }}.matches(r'(?i)^(gpushare\.dev/|(al[iy][a-z]*n(\.[a-z]+)*|gpu-?share[a-z.-]*)/[cv]?(gpu|gup|pgu))'))
{{- end }}

{{/* CEL: whether a label, or an annotation, of a pod looks like ours and is none. */}}
{{- define "gpushare.slips.label" -}}
(!({{ . }} in ['gpushare.dev/admission', 'aliyun.com/gpu-count', 'ack.gpushare.placement', 'gpushare.dev/gpu-per-container', 'gpushare.dev/stands-for'])
  && {{ include "gpushare.slips.key" . }})
{{- end }}
{{- define "gpushare.slips.annotation" -}}
(!({{ . }} in ['gpushare.dev/defragmentation', 'gpushare.dev/allocation', 'gpushare.dev/also-holds', 'gpushare.dev/retry',
  'gpushare.dev/requested', 'gpushare.dev/room-made', 'gpushare.dev/stands-for', 'gpushare.dev/deletion-cost',
  'gpushare.dev/unit-labels', 'gpushare.dev/config-checksum'])
  && {{ include "gpushare.slips.key" . }})
{{- end }}
{{- define "gpushare.slips.key" -}}
{{ . }}.matches(r'(?i)^(gpu-?sh?are?s?\.(dev|io|org)/.*(adm|dmi|frag|gpu|mem|core|cordon|pod|mode|place|sched)|ack\.(node\.gpu|gpu[-.]?share)\.|aliyun\.com/gpu(-mem|-core\.percentage|s?[-_.]?(counts?|num|number))$)')
{{- end }}

{{/* CEL: whether an amount of units, written so, may be more than a GPU can have. A number of up to three digits is not. */}}
{{- define "gpushare.slips.amount" -}}
!string({{ . }}).matches('^[0-9]{1,3}$')
{{- end }}

{{/* CEL: whether amount r of container c, of a pod or template at PATH, may be less of a GPU than a CUDA context takes; in units of
1GiB none is. Takes (dict "root" $ "pod" PATH). */}}
{{- define "gpushare.slips.maybeSmall" -}}
{{- if lt (include "gpushare.unitMiB" .root | int) 512 -}}
|| r == 'gpushare.dev/gpu-memory' || (r == 'aliyun.com/gpu-mem' && (string(c.resources.limits[r]).matches('^[1-3]$')
  || (has({{ .pod }}.metadata) && has({{ .pod }}.metadata.labels) && 'aliyun.com/gpu-count' in {{ .pod }}.metadata.labels)))
{{- end }}
{{- end }}

{{/* CEL: whether it is less. Takes the root. */}}
{{- define "gpushare.slips.small" -}}
{{- $unit := include "gpushare.unitMiB" . | int -}}
((r == 'aliyun.com/gpu-mem' && quantity(string(c.resources.limits[r])).isGreaterThan(quantity('0'))
    && quantity(string(c.resources.limits[r])).isLessThan(quantity(string(variables.gpus * {{ div 512 $unit }}))))
  || (r == 'gpushare.dev/gpu-memory' && quantity(string(c.resources.limits[r])).isGreaterThan(quantity('0'))
    && !quantity(string(c.resources.limits[r])).isGreaterThan(quantity(string(variables.gpus * {{ sub 512 $unit }}) + 'Mi'))))
{{- end }}

{{/* CEL: whether k is a label of gangs, and whether r is something of ours: a gang without such is not our business. */}}
{{- define "gpushare.slips.gang" -}}
k in ['pod-group.scheduling.sigs.k8s.io/name', 'pod-group.scheduling.sigs.k8s.io/min-available']
{{- end }}
{{- define "gpushare.slips.asks" -}}
(r.startsWith('aliyun.com/gpu') || r.startsWith('gpushare.dev/gpu-memory'))
{{- end }}

{{/* CEL: whether key k of a nodeSelector is one that no node has, and whether its value is. Takes the selector. */}}
{{- define "gpushare.slips.nodeKey" -}}
(k.startsWith('ack.node.gpu.') && !(k in ['ack.node.gpu.schedule', 'ack.node.gpu.placement', 'ack.node.gpu.max-pod']))
{{- end }}
{{- define "gpushare.slips.nodeValue" -}}
((k == 'ack.node.gpu.schedule' && !({{ . }}[k] in ['default', 'share', 'cgpu', 'core_mem', 'mps', 'topology']))
  || (k == 'ack.node.gpu.placement' && !({{ . }}[k] in ['binpack', 'spread', 'fragmentation'])))
{{- end }}

{{/* CEL: whether the name of a scheduler is nearly ours. Takes the name. */}}
{{- define "gpushare.slips.scheduler" -}}
({{ . }} != 'ack-co-scheduler'
  && {{ . }}.matches(r'(?i)^(ac?k[-_.]?(gpu[-_.]?)?(co|gpu-?share)?[-_.]?s(ch?|h)ed[a-z]*|(ack[-_.]?)?co[-_.]?s(ch?|h)ed[a-z]*|gpu-?share(-?s(ch?|h)ed[a-z]*)?)$'))
{{- end }}

{{/* CEL: what to write for resource r. */}}
{{- define "gpushare.slips.meant" -}}
(r.matches('(?i)mem.*(percent|ratio)') ? 'gpushare.dev/gpu-memory.percentage'
  : r.matches('(?i)mem') ? 'aliyun.com/gpu-mem in units, or gpushare.dev/gpu-memory such as 6Gi'
  : r.matches('(?i)core|percent|comput') ? 'aliyun.com/gpu-core.percentage'
  : r.matches('(?i)count|num') ? 'aliyun.com/gpu, or the pod\'s label aliyun.com/gpu-count'
  : 'aliyun.com/gpu-mem for a share, or aliyun.com/gpu for a whole one')
{{- end }}

{{/* CEL: what to do instead with label or annotation k. */}}
{{- define "gpushare.slips.instead" -}}
(k in ['gpushare.dev/admission', 'aliyun.com/gpu-count', 'ack.gpushare.placement', 'gpushare.dev/gpu-per-container'] ? 'it is a label: write it under labels'
  : k == 'gpushare.dev/defragmentation' ? 'it is an annotation: write it under annotations'
  : k in ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'gpushare.dev/gpu-memory', 'gpushare.dev/gpu-memory.percentage']
    ? 'it is a resource: write it in the limits of a container'
  : k.startsWith('ack.node.gpu.') ? 'labels of nodes begin so: to choose nodes by one, write it under nodeSelector'
  : k in ['gpushare.dev/max-pods-per-node', 'gpushare.dev/cordoned-gpus'] ? 'it belongs on nodes'
  : k.matches('(?i)^ack') ? 'write label ack.gpushare.placement'
  : k.matches('(?i)^aliyun') ? 'write label aliyun.com/gpu-count'
  : 'there are label gpushare.dev/admission and annotation gpushare.dev/defragmentation')
{{- end }}

{{/* The policy. Takes (dict "root" $ "pod" PATH "resources" LIST), as the rules on requests do. */}}
{{- define "gpushare.admission.slips" -}}
{{- $old := .pod | replace "object" "oldObject" -}}
# What only warns holds nothing up when it fails, either.
failurePolicy: Ignore
matchConstraints:
  {{- include "gpushare.admission.namespaces" .root | nindent 2 }}
  resourceRules:
    {{- toYaml .resources | nindent 4 }}
matchConditions:
  - name: has-what-looks-like-ours
    expression: >-
      ({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).exists(c,
        c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.slips.resource" "r" | nindent 10 | trim }}
          || (r == 'aliyun.com/gpu-mem' && {{ include "gpushare.slips.amount" "c.resources.limits[r]" }})
          {{ include "gpushare.slips.maybeSmall" (dict "root" .root "pod" .pod) | nindent 10 | trim }}))
      || {{ .pod }}.?metadata.?labels.orValue({}).exists(k,
        k == 'gpushare.dev/admission' || {{ include "gpushare.slips.label" "k" | nindent 8 | trim }})
      || {{ .pod }}.?metadata.?annotations.orValue({}).exists(k,
        k == 'gpushare.dev/defragmentation' || {{ include "gpushare.slips.annotation" "k" | nindent 8 | trim }})
      || {{ .pod }}.spec.?nodeSelector.orValue({}).exists(k,
        {{ include "gpushare.slips.nodeKey" . }}
        || {{ include "gpushare.slips.nodeValue" (print .pod ".spec.nodeSelector") | nindent 8 | trim }})
      || (({{ .pod }}.?metadata.?labels.orValue({}).exists(k, {{ include "gpushare.slips.gang" . }})
          || {{ include "gpushare.slips.scheduler" (print .pod ".spec.?schedulerName.orValue('')") | nindent 10 | trim }})
        && ({{ .pod }}.spec.containers + {{ .pod }}.spec.?initContainers.orValue([])).exists(c,
          c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.slips.asks" . }})))
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
        {{ include "gpushare.slips.resource" "r" | nindent 8 | trim }}))
  # What admission has counted itself was asked for in clear units.
  - name: tooLarge
    expression: >-
      'gpushare.dev/requested' in variables.annotations ? []
      : variables.containers.filter(c, quantity(string(c.?resources.limits[?'aliyun.com/gpu-mem'].orValue('0')))
        .isGreaterThan(quantity(string(variables.gpus * {{ div 1048576 (include "gpushare.unitMiB" .root | int) }}))))
  {{- $unit := include "gpushare.unitMiB" .root | int }}
  {{- $least := div 512 $unit }}
  {{- if ge $least 2 }}
  # A GPU that is given whole is no share; MiB are rounded up to units.
  - name: small
    expression: >-
      variables.labels[?'ack.gpushare.placement'].orValue('') == 'require-whole-device' ? []
      : variables.containers.filter(c, c.?resources.limits.orValue({}).exists(r,
        {{ include "gpushare.slips.small" .root | nindent 8 | trim }}))
  {{- end }}
  - name: asks
    expression: >-
      variables.containers.exists(c, c.?resources.limits.orValue({}).exists(r, {{ include "gpushare.slips.asks" . }}))
  - name: scheduler
    expression: {{ .pod }}.spec.?schedulerName.orValue('')
  - name: selector
    expression: {{ .pod }}.spec.?nodeSelector.orValue({})
  - name: unmet
    expression: >-
      variables.selector.filter(k, {{ include "gpushare.slips.nodeKey" . }})
      .map(k, k + ' (write ack.node.gpu.schedule, ack.node.gpu.placement or ack.node.gpu.max-pod)')
      + ['ack.node.gpu.schedule', 'ack.node.gpu.placement'].filter(k, k in variables.selector
        && {{ include "gpushare.slips.nodeValue" "variables.selector" | nindent 8 | trim }})
      .map(k, k + '=' + variables.selector[k] + (k == 'ack.node.gpu.schedule'
        ? ' (write default, share, cgpu, core_mem, mps or topology)' : ' (write binpack, spread or fragmentation)'))
  - name: gang
    expression: variables.labels[?'pod-group.scheduling.sigs.k8s.io/name'].orValue('')
  - name: least
    expression: variables.labels[?'pod-group.scheduling.sigs.k8s.io/min-available'].orValue('')
  - name: unread
    expression: >-
      variables.labels.filter(k, {{ include "gpushare.slips.label" "k" | nindent 6 | trim }})
      .map(k, 'label ' + k + ' (' + {{ include "gpushare.slips.instead" . | nindent 6 | trim }} + ')')
      + variables.annotations.filter(k, {{ include "gpushare.slips.annotation" "k" | nindent 6 | trim }})
      .map(k, 'annotation ' + k + ' (' + {{ include "gpushare.slips.instead" . | nindent 6 | trim }} + ')')
validations:
  - expression: size(variables.unknown) == 0
    messageExpression: >-
      'gpushare knows no such resource, and a pod waits for ever for what no node offers: '
      + variables.unknown.map(c, 'container ' + c.name + ' asks for '
        + c.resources.limits.filter(r, {{ include "gpushare.slips.resource" "r" | nindent 8 | trim }})
        .map(r, r + ' (write ' + {{ include "gpushare.slips.meant" . | nindent 8 | trim }} + ')').join(' and ')).join(', ')
  - expression: size(variables.tooLarge) == 0
    messageExpression: >-
      'aliyun.com/gpu-mem is a number of units of {{ include "gpushare.unitName" .root }}, without Mi or Gi, and no GPU has as many: '
      + variables.tooLarge.map(c, 'container ' + c.name + ' asks for '
        + string(c.resources.limits['aliyun.com/gpu-mem'])).join(', ')
      + '; write the number of units, or gpushare.dev/gpu-memory such as 6144Mi or 6Gi'
  {{- if ge $least 2 }}
  - expression: size(variables.small) == 0
    messageExpression: >-
      'less of each GPU than a CUDA context may take, some hundred MiB (512 where the driver does not say): '
      + variables.small.map(c, 'container ' + c.name + ' asks for '
        + c.resources.limits.filter(r, {{ include "gpushare.slips.small" .root | nindent 8 | trim }})
        .map(r, r + ': ' + string(c.resources.limits[r])).join(' and ')).join(', ') + '; a program that is held to that may not start: ask for aliyun.com/gpu-mem {{ $least }} or more, '
      + 'in units of {{ include "gpushare.unitName" .root }}'
  {{- end }}
  - expression: >-
      !variables.asks || variables.gang == '' || variables.least.matches('^0*([1-9][0-9]{0,4}|100000)$')
    messageExpression: >-
      'label pod-group.scheduling.sigs.k8s.io/name=' + variables.gang
      + ' needs pod-group.scheduling.sigs.k8s.io/min-available beside it, the number of pods that must run together, from 1 to '
      + '100000: it is \'' + variables.least + '\'; set both on every pod'
  - expression: >-
      !variables.asks || variables.gang != '' || !('pod-group.scheduling.sigs.k8s.io/min-available' in variables.labels)
    message: >-
      label pod-group.scheduling.sigs.k8s.io/min-available says nothing without pod-group.scheduling.sigs.k8s.io/name beside it,
      the gang's name: the pod runs by itself
  - expression: >-
      !variables.asks || !{{ include "gpushare.slips.scheduler" "variables.scheduler" | nindent 6 | trim }}
    messageExpression: >-
      'schedulerName ' + variables.scheduler + ' is nearly ack-co-scheduler, and gpushare does not answer to it: '
      + 'write ack-co-scheduler, or leave it out'
  - expression: size(variables.unread) == 0
    messageExpression: >-
      'nobody reads these of a pod: ' + variables.unread.join(', ')
  - expression: variables.labels[?'gpushare.dev/admission'].orValue('disabled') in ['disabled', 'enabled']
    messageExpression: >-
      'label gpushare.dev/admission keeps a pod\'s scheduler where it is disabled, and does nothing where it is \''
      + variables.labels['gpushare.dev/admission'] + '\'; write disabled, or remove the label'
  - expression: variables.annotations[?'gpushare.dev/defragmentation'].orValue('true') in ['true', 'false']
    message: >-
      annotation gpushare.dev/defragmentation is neither 'true' nor 'false', and so keeps the pod from being moved; write one of
      them, or remove it
  - expression: size(variables.unmet) == 0
    messageExpression: >-
      'nodeSelector names what no node can have: ' + variables.unmet.join(', ')
{{- end }}

{{/* As the policy's condition, for the webhook: a list of containers, and the labels and annotations, of a pod or template at PATH. Takes
(dict "root" $ "pod" PATH), the list of containers its NAME, too ("list"). */}}
{{- define "gpushare.webhook.slipsIn" -}}
(has({{ .pod }}.spec.{{ .list }}) && {{ .pod }}.spec.{{ .list }} != null && {{ .pod }}.spec.{{ .list }}.exists(c, has(c.resources) && has(c.resources.limits)
  && c.resources.limits.exists(r, {{ include "gpushare.slips.resource" "r" | nindent 4 | trim }}
    || (r == 'aliyun.com/gpu-mem' && {{ include "gpushare.slips.amount" "c.resources.limits[r]" }})
    {{ include "gpushare.slips.maybeSmall" (dict "root" .root "pod" .pod) | nindent 4 | trim }})))
{{- end }}
{{- define "gpushare.webhook.slips" -}}
{{ include "gpushare.webhook.slipsIn" (dict "root" .root "pod" .pod "list" "containers") }}
|| {{ include "gpushare.webhook.slipsIn" (dict "root" .root "pod" .pod "list" "initContainers") }}
{{- with .pod }}
|| (has({{ . }}.metadata) && has({{ . }}.metadata.labels) && {{ . }}.metadata.labels.exists(k,
  k == 'gpushare.dev/admission' || {{ include "gpushare.slips.label" "k" | nindent 2 | trim }}))
|| (has({{ . }}.metadata) && has({{ . }}.metadata.annotations) && {{ . }}.metadata.annotations.exists(k,
  k == 'gpushare.dev/defragmentation' || {{ include "gpushare.slips.annotation" "k" | nindent 2 | trim }}))
|| (has({{ . }}.spec.nodeSelector) && {{ . }}.spec.nodeSelector != null && {{ . }}.spec.nodeSelector.exists(k,
  {{ include "gpushare.slips.nodeKey" . }}
  || {{ include "gpushare.slips.nodeValue" (print . ".spec.nodeSelector") | nindent 2 | trim }}))
|| (((has({{ . }}.metadata) && has({{ . }}.metadata.labels) && {{ . }}.metadata.labels.exists(k, {{ include "gpushare.slips.gang" . }}))
    || (has({{ . }}.spec.schedulerName) && {{ include "gpushare.slips.scheduler" (print . ".spec.schedulerName") | nindent 4 | trim }}))
  && ({{ include "gpushare.webhook.asks" . }}))
{{- end }}
{{- end }}
