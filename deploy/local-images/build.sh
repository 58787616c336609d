#!/usr/bin/env bash
# Makes the base images of docker-compose.yml on a machine that can reach no image registry, under the names that the
# official ones have: debootstrap makes a Debian, and Debian's own packages make the rest. Needs root and an engine.
#
#   deploy/local-images/build.sh                 python, rabbitmq, redis, postgres; those that exist are kept
#   deploy/local-images/build.sh redis           only this one
#   FRESH=1 deploy/local-images/build.sh         all again
#
# Mirror, proxies, certificates and the package index are those that this machine is set up with; none is named here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

SUITE=${SUITE:-trixie}
BASE=debian:$SUITE-slim
case $SUITE in
  trixie) declare -A TAGS=([python]=3.13-slim [rabbitmq]=4-management [redis]=8 [postgres]=17) ;;
  bookworm) declare -A TAGS=([python]=3.11-slim [rabbitmq]=3-management [redis]=7 [postgres]=15) ;;
  *) echo "local-images: unknown suite $SUITE" >&2; exit 2 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

exists() { [ -z "${FRESH:-}" ] && docker image inspect "$1" >/dev/null 2>&1; }
mirror_of() {
  apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' | awk -v suite="$1" '$2 ~ suite {print $1; exit}'
}

base() {
  if exists "$BASE"; then return 0; fi
  local root=$work/root mirror security index variables=() name
  mirror=$(mirror_of '^[^-]+$')
  security=$(mirror_of '-security$')
  [ -n "$mirror" ] || { echo 'local-images: apt knows no mirror: run apt-get update' >&2; exit 1; }
  debootstrap --variant=minbase --include=ca-certificates "$SUITE" "$root" "$mirror" >"$work/log" 2>&1 \
    || { tail -n 20 "$work/log" >&2; exit 1; }
  {
    echo "deb $mirror $SUITE main"
    echo "deb $mirror $SUITE-updates main"
    [ -z "$security" ] || echo "deb $security $SUITE-security main"
  } >"$root/etc/apt/sources.list"
  apt-config dump Acquire | grep -E '::(Proxy|Proxy-.*|Check-Valid-Until|Check-Date|Retries) ' >"$root/etc/apt/apt.conf.d/90host" || true
  cat >"$root/etc/apt/apt.conf.d/91small" <<'CONF'
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Binary::apt::APT::Keep-Downloaded-Packages "false";
CONF
  printf 'path-exclude /usr/share/%s/*\n' doc man info locale >"$root/etc/dpkg/dpkg.cfg.d/small"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"  # packages start no servers while an image is built
  chmod +x "$root/usr/sbin/policy-rc.d"
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
  index=${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || true)}
  case $index in http*) printf '[global]\nindex-url = %s\n' "$index" >"$root/etc/pip.conf" ;; esac
  # Programs that bring certificates of their own are pointed to the system's where this machine does so as well.
  for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE PIP_CERT CURL_CA_BUNDLE; do
    [ -z "${!name:-}" ] || variables+=(--change "ENV $name=/etc/ssl/certs/ca-certificates.crt")
  done
  rm -rf "$root"/usr/share/{doc,man,info,locale}/* "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
  tar -C "$root" -c . | docker import "${variables[@]}" --change 'CMD ["bash"]' - "$BASE" >/dev/null
  rm -rf "$root"
  echo "local-images: $BASE"
}

image() {
  local name=$1 tag=$1:${TAGS[$1]} arguments=() variable
  if exists "$tag"; then echo "local-images: $tag is there"; return 0; fi
  for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!variable:-}" ] || arguments+=(--build-arg "$variable")
  done
  [ -z "${BUILD_NETWORK:-}" ] || arguments+=(--network "$BUILD_NETWORK")
  docker build --quiet --file "$name.Dockerfile" --build-arg "BASE=$BASE" --build-arg "VERSION=${TAGS[$name]}" \
    "${arguments[@]}" --tag "$tag" . >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; exit 1; }
  echo "local-images: $tag"
}

base
[ $# -gt 0 ] || set -- python rabbitmq redis postgres
for name in "$@"; do image "$name"; done
