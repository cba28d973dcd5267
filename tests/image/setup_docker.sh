#!/usr/bin/env bash
# What the tests of the serving image need: Debian's docker.io, docker-registry and tini.
# Installs only what is missing; 20 to 50 s the first time, nothing afterwards. Needs root.
set -euo pipefail

missing=()
command -v dockerd >/dev/null || missing+=(docker.io)
command -v docker-registry >/dev/null || missing+=(docker-registry)
command -v docker-init >/dev/null || command -v tini >/dev/null || missing+=(tini)
if [ "${#missing[@]}" -eq 0 ]; then
    echo "docker for tests: already there"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "docker for tests: ${missing[*]} missing, and installing needs root" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -y -q --no-install-recommends "${missing[@]}"
