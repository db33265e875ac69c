{{- define "sidecar.selector" -}}
app.kubernetes.io/name: sidecar-evaluator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
