{{/*
The alerts as Prometheus reads them: the file as it is, or, where the address of the page about alerts is named, each with that of its
section, whose anchor is its name in small letters.
*/}}
{{- define "co.alerts" -}}
{{- $text := .Files.Get "files/alerts.yaml" -}}
{{- with .Values.monitoring.rules.runbookUrl -}}
{{- $page := . -}}
{{- $read := fromYaml $text -}}
{{- range $group := $read.groups -}}
{{- range $rule := $group.rules -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s#%s" $page (lower $rule.alert)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $read -}}
{{- else -}}
{{- $text -}}
{{- end -}}
{{- end }}
