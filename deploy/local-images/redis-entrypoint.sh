#!/bin/sh
# As the official image: options or a .conf go to redis-server, and root becomes the user redis.
set -e
case $1 in -* | *.conf) set -- redis-server "$@" ;; esac
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
  umask 0077
  find . ! -user redis -exec chown redis: '{}' +
  exec setpriv --reuid=redis --regid=redis --clear-groups "$@"
fi
exec "$@"
