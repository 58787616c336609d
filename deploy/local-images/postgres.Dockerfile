# In place of the official postgres image: Debian's postgresql.
ARG BASE
FROM ${BASE}
ARG VERSION
ENV LANG=C.UTF-8 PGDATA=/var/lib/postgresql/data \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/${VERSION}/bin
# create_main_cluster: the package would otherwise make a cluster of its own while it is installed.
RUN apt-get update \
 && export DEBIAN_FRONTEND=noninteractive LC_ALL=C \
 && apt-get install -y --no-install-recommends postgresql-common \
 && sed -ri 's/#?create_main_cluster .*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf \
 && apt-get install -y --no-install-recommends "postgresql-${VERSION}" \
 && rm -rf /var/lib/apt/lists/* \
 && mkdir -p /docker-entrypoint-initdb.d "$PGDATA" \
 && install -d -o postgres -g postgres -m 3777 /var/run/postgresql \
 && chown -R postgres: /var/lib/postgresql \
 && chmod 700 "$PGDATA"
COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
