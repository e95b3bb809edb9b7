{{- define "baton.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "baton.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{ include "baton.selector" . }}
{{- end }}

{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "baton.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "baton.clusterSecret" -}}
{{ .Values.clusterKey.existingSecret | default (printf "%s-cluster-key" (include "baton.name" .)) }}
{{- end }}

{{- define "baton.apiSecret" -}}
{{ .Values.apiKeys.existingSecret | default (printf "%s-api-keys" (include "baton.name" .)) }}
{{- end }}

{{- define "baton.adminSecret" -}}
{{ .Values.adminKeys.existingSecret | default (printf "%s-admin-keys" (include "baton.name" .)) }}
{{- end }}

{{/* Secrets of a kind (root, kind), as lines "volume secret file directory". */}}
{{- define "baton.secrets" -}}
cluster-key {{ include "baton.clusterSecret" .root }} cluster_key cluster
{{- if .root.Values.apiKeys.enabled }}
api-keys {{ include "baton.apiSecret" .root }} api_keys api
{{- end }}
{{- with .root.Values.linkTLS.existingSecret }}
link-cert {{ . }} tls.crt link-cert
link-key {{ . }} tls.key link-key
link-ca {{ . }} ca.crt link-ca
{{- end }}
{{- if eq .kind "router" }}
admin-keys {{ include "baton.adminSecret" .root }} admin_keys admin
{{- end }}
{{- end }}

{{- define "baton.secretMounts" -}}
{{- range splitList "\n" (include "baton.secrets" .) }}
{{- $s := splitList " " . }}
- {name: {{ index $s 0 }}, mountPath: /run/secrets/baton/{{ index $s 3 }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "baton.secretVolumes" -}}
{{- range splitList "\n" (include "baton.secrets" .) }}
{{- $s := splitList " " . }}
- name: {{ index $s 0 }}
  secret:
    secretName: {{ index $s 1 }}
    defaultMode: 0440
    items: [{key: {{ index $s 2 }}, path: {{ index $s 2 }}}]
{{- end }}
{{- end }}

{{- define "baton.program" -}}
{{ get (dict "router" "routerd" "prefill" "prefilld" "decode" "decoded") . }}
{{- end }}

{{/* The configuration file of a kind (root, kind). Its hash is on the pods: a change restarts those it
     concerns, one after another. */}}
{{- define "baton.conf" -}}
{{- $r := .root.Values -}}
{{- $v := index $r .kind -}}
{{- if eq .kind "router" -}}
listen = {{ $r.bindAddress }}:{{ $r.router.port }}
prefill = {{ include "baton.workers" (dict "root" .root "kind" "prefill" "replicas" $r.prefill.replicas) }}
decode = {{ include "baton.workers" (dict "root" .root "kind" "decode" "replicas" $r.decode.replicas) }}
{{- if not $r.apiKeys.enabled }}
insecure = yes
{{- end }}
admin_listen = {{ $r.router.adminListen }}
admin_key_file = /run/secrets/baton/admin/admin_keys
{{- else -}}
listen = {{ $r.bindAddress }}:7000
http = {{ $r.bindAddress }}:7001
data_devices = {{ $v.dataDevices }}
{{- if not $r.apiKeys.enabled }}
insecure = yes
{{- end }}
{{- end }}
model = {{ $r.model.path }}
{{- with $r.model.name }}
model_name = {{ . }}
{{- end }}
cluster_key_file = /run/secrets/baton/cluster/cluster_key
{{- if $r.linkTLS.existingSecret }}
link_cert_file = /run/secrets/baton/link-cert/tls.crt
link_key_file = /run/secrets/baton/link-key/tls.key
link_ca_file = /run/secrets/baton/link-ca/ca.crt
{{- end }}
{{- if $r.apiKeys.enabled }}
api_key_file = /run/secrets/baton/api/api_keys
{{- end }}
drain_ms = {{ $v.drainSeconds }}s
{{- include "baton.config" $v.config }}
{{- end }}

{{/* key = value lines of a map, sorted, without those that the chart sets itself */}}
{{- define "baton.config" -}}
{{- range $k, $v := . }}
{{- if has $k (list "name" "listen" "http" "model" "model_name" "prefill" "decode" "cluster_key_file" "api_key_file" "drain_ms" "data_devices" "device" "insecure" "admin_listen" "admin_key_file" "link_cert_file" "link_key_file" "link_ca_file") }}
{{- fail (printf "config.%s is set by the chart itself; see values.yaml" $k) }}
{{- end }}
{{ $k }} = {{ $v }}
{{- end }}
{{- end }}

{{/* Control addresses of the workers of a kind: pod names are known beforehand. */}}
{{- define "baton.workers" -}}
{{- $name := printf "%s-%s" (include "baton.name" .root) .kind -}}
{{- $list := list -}}
{{- range $i := until (int .replicas) -}}
{{- $list = append $list (printf "%s-%d.%s.%s.svc:7000" $name $i $name $.root.Release.Namespace) -}}
{{- end -}}
{{- join ", " $list -}}
{{- end }}

{{- define "baton.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "baton.modelVolume" -}}
- name: models
  {{- if eq .Values.model.source "pvc" }}
  persistentVolumeClaim:
    claimName: {{ .Values.model.pvc.claimName }}
    readOnly: true
  {{- else if eq .Values.model.source "hostPath" }}
  hostPath:
    path: {{ .Values.model.hostPath.path }}
    type: Directory
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.model.init.sizeLimit }}
  {{- end }}
{{- end }}

{{- define "baton.modelInit" -}}
{{- if eq .Values.model.source "init" }}
initContainers:
  - name: model
    image: {{ required "model.init.image: which image fetches the model?" .Values.model.init.image }}
    command: {{ toJson .Values.model.init.command }}
    {{- with .Values.model.init.env }}
    env: {{ toJson . }}
    {{- end }}
    resources:
      requests: {cpu: 500m, memory: 512Mi}
      limits: {memory: 2Gi}
    securityContext: {{ include "baton.security" . | nindent 6 }}
    volumeMounts:
      - {name: models, mountPath: /models}
      - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end }}

{{- define "baton.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Workers of a kind go to different nodes, so that one node that fails takes one of them. Anti-affinity
     between pods that the values name themselves takes the place of it. */}}
{{- define "baton.workerAffinity" -}}
{{- $affinity := .v.affinity | default dict | deepCopy }}
{{- if not (or (hasKey $affinity "podAntiAffinity") (eq .v.spread "off")) }}
{{- $others := merge (include "baton.selector" .root | fromYaml) (dict "app.kubernetes.io/component" .kind) }}
{{- $term := dict "topologyKey" .v.spreadTopologyKey "labelSelector" (dict "matchLabels" $others) }}
{{- $rule := dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term)) }}
{{- if eq .v.spread "hard" }}{{ $rule = dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term) }}{{ end }}
{{- $_ := set $affinity "podAntiAffinity" $rule }}
{{- end }}
{{- with $affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* root, kind (prefill, decode), v: the values of that kind */}}
{{- define "baton.workerPod" -}}
{{- $program := include "baton.program" .kind -}}
metadata:
  labels: {{ include "baton.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .kind }}
  annotations:
    checksum/config: {{ include "baton.conf" (dict "root" .root "kind" .kind) | sha256sum }}
    {{- with .v.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  # drain_ms, and some air
  terminationGracePeriodSeconds: {{ add .v.drainSeconds 15 }}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{ toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- include "baton.placement" .v | nindent 2 }}
  {{- include "baton.workerAffinity" . | nindent 2 }}
  {{- include "baton.modelInit" .root | nindent 2 }}
  containers:
    - name: {{ $program }}
      image: {{ include "baton.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [{{ $program }}, -c, /etc/baton/{{ $program }}.conf]
      env:
        - name: BATON_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- with .v.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: control, containerPort: 7000}
        - {name: http, containerPort: 7001}
      # loading may take long; after that:
      startupProbe:
        httpGet: {path: /ready, port: http}
        periodSeconds: 5
        failureThreshold: {{ div .v.startupSeconds 5 }}
      # the loop turns, and an engine with work computes
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 3
      # it would get work: a roll-out goes on only when a router knows it
      readinessProbe:
        httpGet: {path: "/ready?router", port: http}
        periodSeconds: 2
        timeoutSeconds: 5
      {{- $limits := .v.resources.limits | default dict | deepCopy }}
      {{- $requests := .v.resources.requests | default dict | deepCopy }}
      {{- if gt (int .v.gpu.count) 0 }}{{ $_ := set $limits .v.gpu.resourceName .v.gpu.count }}{{ end }}
      {{- if gt (int .v.rdma.count) 0 }}{{ $_ := set $limits .v.rdma.resourceName .v.rdma.count }}{{ end }}
      resources:
        requests: {{ toJson $requests }}
        limits: {{ toJson $limits }}
      securityContext: {{ include "baton.security" .root | nindent 8 }}
          {{- if gt (int .v.rdma.count) 0 }}
          add: [IPC_LOCK]
          {{- end }}
      volumeMounts:
        - {name: config, mountPath: /etc/baton, readOnly: true}
        {{- include "baton.secretMounts" (dict "root" .root "kind" .kind) | nindent 8 }}
        - {name: models, mountPath: /models, readOnly: true}
        - {name: shm, mountPath: /dev/shm}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: config
      configMap: {name: {{ include "baton.name" .root }}-{{ .kind }}}
    {{- include "baton.secretVolumes" (dict "root" .root "kind" .kind) | nindent 4 }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .v.shmSize }}}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- include "baton.modelVolume" .root | nindent 4 }}
{{- end }}
