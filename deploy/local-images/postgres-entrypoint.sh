#!/bin/bash
# As much of the official image's behaviour as is used: POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD (also as _FILE),
# POSTGRES_INITDB_ARGS, PGDATA, options given to the server; root becomes postgres.
set -euo pipefail
if [ "${1:0:1}" = - ]; then set -- postgres "$@"; fi
if [ "$1" = postgres ]; then
  if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chmod 700 "$PGDATA"
    find "$PGDATA" ! -user postgres -exec chown postgres '{}' +
    exec setpriv --reuid=postgres --regid=postgres --init-groups "${BASH_SOURCE[0]}" "$@"
  fi
  user=${POSTGRES_USER:-postgres}
  database=${POSTGRES_DB:-$user}
  if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=${POSTGRES_PASSWORD:-}
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then password=$(<"$POSTGRES_PASSWORD_FILE"); fi
    [ -n "$password" ] || { echo 'postgres: set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE' >&2; exit 1; }
    initdb --username="$user" --pwfile=<(printf '%s\n' "$password") --auth-local=trust --auth-host=scram-sha-256 \
      --encoding=UTF8 ${POSTGRES_INITDB_ARGS:-}
    printf '\nhost all all all scram-sha-256\n' >>"$PGDATA/pg_hba.conf"
    printf "\nlisten_addresses = '*'\n" >>"$PGDATA/postgresql.conf"
    # A server that only its socket reaches makes the database: whoever waits for the port waits for the real one.
    pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
    if [ "$database" != postgres ]; then createdb --username="$user" "$database"; fi
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
  fi
fi
exec "$@"
