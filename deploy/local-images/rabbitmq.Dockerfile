# In place of the official rabbitmq management image: Debian's rabbitmq-server.
ARG BASE
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends rabbitmq-server procps \
 && rm -rf /var/lib/apt/lists/* /var/lib/rabbitmq/.erlang.cookie /var/lib/rabbitmq/mnesia \
 && mkdir -p /etc/rabbitmq/conf.d \
 && printf 'log.console = true\nlog.file = false\n' > /etc/rabbitmq/conf.d/10-defaults.conf \
 && printf '[rabbitmq_management,rabbitmq_prometheus].\n' > /etc/rabbitmq/enabled_plugins \
 && chown -R rabbitmq:rabbitmq /etc/rabbitmq /var/lib/rabbitmq /var/log/rabbitmq
# The home: a health check runs as root and must find the server's cookie. The path: upstream's own scripts come before
# Debian's, which write the log to a file and change the user by su.
ENV HOME=/var/lib/rabbitmq RABBITMQ_LOGS=- LANG=C.UTF-8 LC_ALL=C.UTF-8 \
    PATH=/usr/lib/rabbitmq/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY rabbitmq-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/rabbitmq
EXPOSE 5671 5672 15672 15692 25672
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["rabbitmq-server"]
