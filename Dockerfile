# One image for all services of compose.yaml: code server, daemon and webserver of Dagster, and `bardo serve`.
# The packages are those of deploy/requirements.lock, each checked by its hash.

FROM python:3.11-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /app
COPY deploy/requirements.lock deploy/requirements.lock
RUN python -m venv /opt/bardo \
    && /opt/bardo/bin/python -m pip install -q --require-hashes --no-deps -r deploy/requirements.lock
COPY pyproject.toml setup.py MANIFEST.in LICENSE README.md definitions.py ./
COPY bardo_pipeline bardo_pipeline
COPY assets assets
COPY jobs jobs
COPY sensors sensors
COPY dbt dbt
COPY deploy deploy
RUN /opt/bardo/bin/python -m pip install -q --no-deps --no-build-isolation --no-index -e . \
    && /opt/bardo/bin/python -m compileall -q bardo_pipeline assets jobs sensors \
    && /opt/bardo/bin/python -c "import definitions"

FROM python:3.11-slim-bookworm

RUN groupadd --gid 10001 bardo \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/bardo --shell /usr/sbin/nologin bardo \
    && install -d -m 0700 -o bardo -g bardo /var/lib/bardo /var/lib/bardo/home /var/lib/bardo/dagster
COPY --from=build /opt/bardo /opt/bardo
COPY --from=build /app /app
ENV PATH=/opt/bardo/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/bardo \
    BARDO_HOME=/var/lib/bardo/home \
    DAGSTER_HOME=/var/lib/bardo/dagster \
    DAGSTER_DISABLE_TELEMETRY=yes \
    DO_NOT_TRACK=1 \
    GX_ANALYTICS_ENABLED=false
WORKDIR /app
USER 10001:10001
VOLUME ["/var/lib/bardo/home", "/var/lib/bardo/dagster"]
ENTRYPOINT ["/app/deploy/entrypoint"]
CMD ["bardo", "serve"]
# Dagster's services have checks of their own in compose.yaml.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "/app/deploy/answers.py", "http://127.0.0.1:8642/healthz"]
