# In place of the official python image: Debian's interpreter, laid over /usr/local as a virtual environment, so that
# `python` and `pip` are where they are there and may install.
ARG BASE
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /usr/local
ENV LANG=C.UTF-8
CMD ["python3"]
