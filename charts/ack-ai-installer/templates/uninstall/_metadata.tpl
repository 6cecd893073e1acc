{{- define "gpushare.uninstall.metadata" -}}
name: gpushare-uninstall
labels:
  {{- include "gpushare.labels" (dict "root" . "name" "gpushare-uninstall") | nindent 2 }}
annotations:
  helm.sh/hook: post-delete
  helm.sh/hook-delete-policy: before-hook-creation
{{- end }}
