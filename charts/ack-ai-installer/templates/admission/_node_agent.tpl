{{/*
RBAC cannot express "own node". The token of an agent's pod contains its node (from Kubernetes 1.30 on, as in every cluster with
this kind of policy), so each agent can be restricted to its own node and the pods on it, and to what it needs.
*/}}

{{- define "gpushare.admission.agent" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: ["*"]
      resources: {{ toJson .resources }}
matchConditions:
  - name: is-the-node-agent
    expression: request.userInfo.username == '{{ include "gpushare.user.nodeAgent" .root }}'
variables:
  - name: node
    expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([]).join(' ')
  - name: what
    expression: >-
      request.resource.resource + (request.?subResource.orValue('') == '' ? '' : '/' + request.subResource)
  - name: allowed
    expression: request.operation == 'UPDATE' && variables.what in {{ .updates }}
{{- end }}

{{- define "gpushare.admission.agent.common" -}}
- expression: variables.allowed
  reason: Forbidden
  messageExpression: >-
    'the node agent may not ' + request.operation + ' ' + variables.what + ': it only updates pods and nodes'
{{- if ne .Values.admission.nodeRestriction "never" }}
- expression: variables.node != ''
  reason: Forbidden
  message: >-
    the node agent's token does not identify its node (authentication.kubernetes.io/node-name): use the token that Kubernetes
    issues for its pod, or set the chart's admission.nodeRestriction to never if the cluster's tokens do not contain it
{{- end }}
{{- end }}

{{- define "gpushare.admission.agent.pods" -}}
{{ include "gpushare.admission.agent" (dict "root" . "resources" (list "pods" "pods/*") "updates" "['pods']") }}
  - name: before
    expression: "variables.allowed ? oldObject.metadata.?annotations.orValue({}) : {}"
  - name: after
    expression: "variables.allowed ? object.metadata.?annotations.orValue({}) : {}"
validations:
  {{- include "gpushare.admission.agent.common" . | nindent 2 }}
  {{- if ne .Values.admission.nodeRestriction "never" }}
  - expression: "!variables.allowed || oldObject.spec.?nodeName.orValue('') == variables.node"
    reason: Forbidden
    messageExpression: >-
      'the node agent of node ' + variables.node + ' may only change this node and the pods on it, not pod '
      + oldObject.metadata.namespace + '/' + oldObject.metadata.name
      + (oldObject.spec.?nodeName.orValue('') == '' ? ' on no node' : ' on node ' + oldObject.spec.nodeName)
  {{- end }}
  - expression: >-
      !variables.allowed || (
        object.spec == oldObject.spec
        && object.metadata.?labels == oldObject.metadata.?labels
        && object.metadata.?finalizers == oldObject.metadata.?finalizers
        && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences
        && [variables.before, variables.after].all(m, m.all(n,
          variables.before[?n] == variables.after[?n]
          || n in {{ include "gpushare.admission.records" . | nindent 10 | trim }})))
    reason: Forbidden
    message: the node agent may only change gpushare's annotations of a pod
{{- end }}

{{/* The older way to bind, an object of its own kind. */}}
{{- define "gpushare.admission.agent.bindings" -}}
{{ include "gpushare.admission.agent" (dict "root" . "resources" (list "bindings") "updates" "[]") }}
validations:
  - expression: variables.allowed
    reason: Forbidden
    messageExpression: >-
      'the node agent may not ' + request.operation + ' ' + variables.what + ': it only updates pods and nodes'
{{- end }}

{{- define "gpushare.admission.agent.nodes" -}}
{{ include "gpushare.admission.agent" (dict "root" . "resources" (list "nodes" "nodes/*") "updates" "['nodes', 'nodes/status']") }}
  # What the agent may write is left out of the comparisons.
  - name: sameNotes
    expression: >-
      !variables.allowed || [object, oldObject].all(o, o.metadata.?annotations.orValue({}).all(n,
        object.metadata.?annotations[?n] == oldObject.metadata.?annotations[?n]
        || (variables.what == 'nodes' && n in ['gpushare.dev/devices', 'gpushare.dev/isolation'])))
  - name: sameLabels
    expression: >-
      !variables.allowed || [object, oldObject].all(o, o.metadata.?labels.orValue({}).all(n,
        object.metadata.?labels[?n] == oldObject.metadata.?labels[?n]
        || (variables.what == 'nodes' && n == 'gpushare.dev/described')))
  - name: ours
    expression: "['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'aliyun.com/gpu-count', 'aliyun.com/gpu']"
  - name: sameResources
    expression: >-
      !variables.allowed || [object, oldObject].all(o,
        o.?status.?capacity.orValue({}).all(n, n in variables.ours
          || object.?status.?capacity[?n] == oldObject.?status.?capacity[?n])
        && o.?status.?allocatable.orValue({}).all(n, n in variables.ours
          || object.?status.?allocatable[?n] == oldObject.?status.?allocatable[?n]))
  - name: sameStatus
    expression: >-
      !variables.allowed || (
        object.?status.?conditions.orValue([]).filter(c, c.type != 'GPUShareReady')
          == oldObject.?status.?conditions.orValue([]).filter(c, c.type != 'GPUShareReady')
        && object.?status.?addresses == oldObject.?status.?addresses
        && object.?status.?phase == oldObject.?status.?phase
        && object.?status.?daemonEndpoints == oldObject.?status.?daemonEndpoints
        && object.?status.?nodeInfo == oldObject.?status.?nodeInfo
        && object.?status.?images == oldObject.?status.?images
        && object.?status.?volumesInUse == oldObject.?status.?volumesInUse
        && object.?status.?volumesAttached == oldObject.?status.?volumesAttached)
validations:
  {{- include "gpushare.admission.agent.common" . | nindent 2 }}
  {{- if ne .Values.admission.nodeRestriction "never" }}
  - expression: "!variables.allowed || oldObject.metadata.name == variables.node"
    reason: Forbidden
    messageExpression: >-
      'the node agent of node ' + variables.node + ' may only change this node and the pods on it, not node '
      + oldObject.metadata.name
  {{- end }}
  - expression: >-
      variables.what != 'nodes' || !variables.allowed || (
        variables.sameNotes && variables.sameLabels
        && object.spec == oldObject.spec
        && object.metadata.?finalizers == oldObject.metadata.?finalizers
        && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)
    reason: Forbidden
    message: >-
      the node agent may only change annotations gpushare.dev/devices and gpushare.dev/isolation and label
      gpushare.dev/described of its node
  - expression: >-
      variables.what != 'nodes/status'
      || (variables.sameNotes && variables.sameLabels && variables.sameResources && variables.sameStatus)
    reason: Forbidden
    message: >-
      the node agent may only change condition GPUShareReady and the capacity and allocatable of aliyun.com/gpu-mem,
      aliyun.com/gpu-core.percentage, aliyun.com/gpu-count and aliyun.com/gpu in its node's status
{{- end }}

{{/* ResourceSlices of nodes in mode dra, which only their own node offers. */}}
{{- define "gpushare.admission.agent.slices" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [resource.k8s.io]
      apiVersions: [v1]
      operations: [CREATE, UPDATE, DELETE]
      resources: [resourceslices]
matchConditions:
  - name: is-the-node-agent
    expression: request.userInfo.username == '{{ include "gpushare.user.nodeAgent" . }}'
variables:
  - name: node
    expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([]).join(' ')
  - name: slices
    expression: >-
      (request.operation == 'DELETE' ? [] : [object]) + (request.operation == 'CREATE' ? [] : [oldObject])
validations:
  - expression: variables.slices.all(s, s.spec.driver == 'gpushare.dev')
    reason: Forbidden
    message: the node agent may only write ResourceSlices of driver gpushare.dev
  {{- if ne .Values.admission.nodeRestriction "never" }}
  - expression: variables.slices.all(s, s.spec.?nodeName.orValue('') == variables.node)
    reason: Forbidden
    messageExpression: >-
      'the node agent of node ' + variables.node + ' may not write ResourceSlices of other nodes: '
      + variables.slices.map(s, s.spec.?nodeName.orValue('none')).join(', ')
  {{- end }}
{{- end }}
