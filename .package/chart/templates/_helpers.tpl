{{- define "rewind.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rewind.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rewind.labels" -}}
{{ include "rewind.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rewind.isPair" -}}{{ if eq .Values.mode "pair" }}yes{{ end }}{{- end -}}

{{- define "rewind.replicas" -}}{{ ternary 2 1 (eq .Values.mode "pair") }}{{- end -}}

{{- define "rewind.image" -}}
{{- $usual := ternary "rewind-gateway-full" "rewind-gateway" (eq .Values.mode "pair") -}}
{{ default $usual .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "rewind.account" -}}{{ default (include "rewind.fullname" .) .Values.serviceAccount.name }}{{- end -}}

{{- define "rewind.usersSecret" -}}{{ default (printf "%s-users" (include "rewind.fullname" .)) .Values.usersSecret }}{{- end -}}

{{- define "rewind.port" -}}{{ ternary 5671 5672 (ne .Values.tls.secretName "") }}{{- end -}}

{{- define "rewind.scheme" -}}{{ ternary "HTTPS" "HTTP" (ne .Values.tls.secretName "") }}{{- end -}}

{{/* Bytes of a quantity of memory, in MiB; 0 where it is written otherwise. */}}
{{- define "rewind.memory" -}}
{{- $text := toString . -}}
{{- if regexMatch "^[0-9]+Gi$" $text -}}{{ mul (trimSuffix "Gi" $text | int) 1024 }}
{{- else if regexMatch "^[0-9]+Mi$" $text -}}{{ trimSuffix "Mi" $text | int }}
{{- else -}}0{{- end -}}
{{- end -}}

{{/* The configuration of one gateway; called with a dict of `root` and the `number` of its pod. */}}
{{- define "rewind.toml" -}}
{{- $root := .root -}}{{- $name := include "rewind.fullname" $root -}}{{- $space := $root.Release.Namespace -}}
data = "/data/rewind"

[[listener]]
host = "0.0.0.0"
port = {{ include "rewind.port" $root }}
{{- with $root.Values.tls }}{{ if .secretName }}

[listener.tls]
certificate = "/etc/rewind-tls/tls.crt"
key = "/etc/rewind-tls/tls.key"
{{- if .clientCa }}
client_ca = "/etc/rewind-tls/ca.crt"
{{- end }}{{ end }}{{ end }}

[admin]
host = "0.0.0.0"
port = 8672
console = {{ $root.Values.admin.console }}
{{- $hosts := list -}}
{{- range $one := list (printf "%s-admin" $name) (printf "%s-%d.%s-pods" $name (int .number) $name) -}}
{{- $hosts = concat $hosts (list $one (printf "%s.%s" $one $space) (printf "%s.%s.svc" $one $space) (printf "%s.%s.svc.cluster.local" $one $space)) -}}
{{- end }}
hosts = {{ concat $hosts $root.Values.admin.hosts | toJson }}
{{- with $root.Values.tls }}{{ if .secretName }}

[admin.tls]
certificate = "/etc/rewind-tls/tls.crt"
key = "/etc/rewind-tls/tls.key"
{{- if .clientCa }}
client_ca = "/etc/rewind-tls/ca.crt"
{{- end }}{{ end }}{{ end }}
{{- $most := include "rewind.memory" (dig "limits" "memory" "" $root.Values.resources) | int }}
{{- if and (gt $most 512) (not (contains "[limits]" $root.Values.config)) }}

[limits]
memory_mb = {{ sub $most 256 }}
{{- end }}
{{- if include "rewind.isPair" $root }}{{ with $root.Values.postgresql }}

[vpn.default.store]
url = {{ required "postgresql.url is needed where mode is pair" .url | toJson }}
{{- with .readUrl }}
read_url = {{ toJson . }}
{{- end }}
{{- if .passwordSecret.name }}
password_file = {{ printf "/etc/rewind-postgresql/%s" .passwordSecret.key | toJson }}
{{- end }}
advertise = "{{ $name }}-{{ $.number }}.{{ $name }}-pods.{{ $space }}.svc:{{ include "rewind.port" $root }}"
require_standby = {{ .requireStandby }}
standby_reads = {{ .standbyReads }}
lease_seconds = {{ .leaseSeconds }}
{{- end }}{{ end }}

{{ $root.Values.config | trim }}
{{- range $user, $may := $root.Values.users }}

[user.{{ toJson $user }}]
password_file = {{ printf "/etc/rewind-users/%s" $user | toJson }}
{{- range $list := list "publish" "consume" "browse" "replay" "administer" }}
{{- with get $may $list }}
{{ $list }} = {{ toJson . }}
{{- end }}
{{- end }}
{{- with $may.globalAccess }}
global_access = {{ toJson . }}
{{- end }}
{{- end }}
{{ end -}}
