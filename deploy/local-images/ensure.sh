#!/usr/bin/env bash
# Sees to it that there is an engine, and that the images that docker-compose.yml is made of are there: pulled where a
# registry can be reached, made on this machine where none can.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1 || "$here/engine.sh" up
for name in python:3.13-slim rabbitmq:4-management redis:8 postgres:17; do
  docker image inspect "$name" >/dev/null 2>&1 && continue
  if [ -z "${LOCAL_IMAGES:-}" ] && timeout 120 docker pull --quiet "$name" >/dev/null 2>&1; then
    echo "images: pulled $name"
    continue
  fi
  echo "images: $name cannot be pulled, it is made here"
  LOCAL_IMAGES=1
  "$here/build.sh" "${name%%:*}"
done
