#!/bin/sh
# The cookie is made before the server starts: a health check in the first second would otherwise make it first, as root,
# and the server, which could not read it, would end.
set -e
if [ "$1" = rabbitmq-server ]; then
  cookie=/var/lib/rabbitmq/.erlang.cookie
  if [ -n "$RABBITMQ_ERLANG_COOKIE" ] || [ ! -s "$cookie" ]; then
    umask 077
    printf '%s' "${RABBITMQ_ERLANG_COOKIE:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}" >"$cookie.new"
    if [ "$(id -u)" = 0 ]; then chown rabbitmq: "$cookie.new"; fi
    chmod 400 "$cookie.new"
    mv -f "$cookie.new" "$cookie"
    umask 022
  fi
  unset RABBITMQ_ERLANG_COOKIE
  if [ "$(id -u)" = 0 ]; then
    find /var/lib/rabbitmq ! -user rabbitmq -exec chown rabbitmq: '{}' +
    exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$@"
  fi
fi
exec "$@"
