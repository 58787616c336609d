#!/usr/bin/env bash
# Starts a Docker engine as a plain background process on a Debian machine that has none, and stops it again.
#
#   deploy/local-images/engine.sh up      installs what is missing, starts the engine unless one answers already
#   deploy/local-images/engine.sh down    stops the engine that `up` started, and no other
set -euo pipefail

state=${PLACET_ENGINE_STATE:-/run/placet-engine}
plugins=/usr/local/lib/docker/cli-plugins

fail() { echo "engine: $*" >&2; exit 1; }
answers() { docker info >/dev/null 2>&1; }

install_packages() {
  [ "$(id -u)" = 0 ] || fail "only root can install and start an engine"
  local missing=() package
  for package in docker.io debootstrap iptables ca-certificates; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok' || missing+=("$package")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  echo "engine: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$state/apt.log" 2>&1 \
    || { tail -n 20 "$state/apt.log" >&2; fail "the packages could not be installed"; }
}

# Compose v2 and buildx. Where this release of Debian has no packages of them, those of the next one are unpacked: two
# programs that need nothing but its C library. Its lists are kept apart, so that nothing else ever comes from there.
install_plugins() {
  if docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; then return 0; fi
  if apt-cache policy docker-buildx 2>/dev/null | grep -q 'Candidate: [0-9]'; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker-compose docker-buildx >"$state/apt.log" 2>&1
    return 0
  fi
  local work mirror
  work=$(mktemp -d)
  chmod 755 "$work"
  mkdir -p "$work"/{lists/partial,cache/archives/partial,unpacked}
  : >"$work/status"
  mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | awk '$2 !~ /-/ {print $1; exit}')
  [ -n "$mirror" ] || fail "apt knows no mirror: run apt-get update"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror ${NEXT_SUITE:-trixie} main" >"$work/sources"
  printf '%s "%s";\n' Dir::Etc::sourcelist "$work/sources" Dir::Etc::sourceparts - Dir::State::lists "$work/lists" \
    Dir::State::status "$work/status" Dir::Cache "$work/cache" APT::Sandbox::User root >"$work/apt.conf"
  (cd "$work" && export APT_CONFIG=$work/apt.conf && apt-get update -qq && apt-get download -qq docker-compose docker-buildx) \
    >"$state/apt.log" 2>&1 || { tail -n 20 "$state/apt.log" >&2; fail "Compose and buildx could not be fetched"; }
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
  install -D -t "$plugins" "$work"/unpacked/usr/libexec/docker/cli-plugins/*
  rm -rf "$work"
}

up() {
  if answers && docker compose version >/dev/null 2>&1; then
    echo "engine: one answers already"
    return 0
  fi
  mkdir -p "$state"
  install_packages
  install_plugins
  if ! answers; then
    # No pipe and no terminal: the engine outlives this script and must not hold its output open.
    setsid dockerd ${DOCKERD_OPTIONS:-} >"$state/dockerd.log" 2>&1 </dev/null &
    echo $! >"$state/pid"
    for _ in $(seq 300); do answers && break; sleep 0.1; done
    answers || { tail -n 20 "$state/dockerd.log" >&2; fail "dockerd did not start"; }
  fi
  docker version --format 'engine: {{.Server.Version}} answers'
}

down() {
  local pid running
  pid=$(cat "$state/pid" 2>/dev/null) || { echo "engine: none of ours"; return 0; }
  if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
    running=$(docker ps --quiet)
    [ -z "$running" ] || docker stop --time 5 $running >/dev/null
    kill "$pid"
    # Gone, or a zombie: not every init reaps at once.
    for _ in $(seq 200); do grep -qs '^State:.[^ZX]' "/proc/$pid/status" || break; sleep 0.1; done
  fi
  rm -f "$state/pid"
}

case ${1:-} in
  up) up ;;
  down) down ;;
  *) fail "say up or down" ;;
esac
