# syntax=docker/dockerfile:1
# docker build -t ppd-gateway:0.1.0 .
# A reproducible build names the base image by digest:
#   --build-arg PYTHON_IMAGE=python@sha256:…   (docker buildx imagetools inspect python:3.11-slim-bookworm)
# deploy/docker/rehearse.py runs the instructions of this file where there is no Docker.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN ["python", "-m", "venv", "/opt/ppd-gateway"]
# The dependencies change less often than the code: layers of their own.
COPY pyproject.toml requirements.lock deploy/docker/dependencies.py ./
RUN ["python", "dependencies.py", "pyproject.toml", "runtime.txt", "dns", "otel"]
RUN ["/opt/ppd-gateway/bin/python", "-m", "pip", "install", "-r", "runtime.txt", "-c", "requirements.lock"]
COPY README.md LICENSE ./
COPY gateway ./gateway
COPY lut ./lut
COPY loadtest ./loadtest
RUN ["python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", "."]
RUN ["/opt/ppd-gateway/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", "--find-links", "dist", "ppd-gateway"]
RUN ["python", "-c", "import pathlib; pathlib.Path('state').mkdir()"]

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ppd-gateway" \
      org.opencontainers.image.description="A gateway that makes multi-turn chat faster on vLLM prefill/decode clusters." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/ppd-gateway/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/ppd-gateway /opt/ppd-gateway
COPY --from=build --chown=10001:10001 /build/state /var/lib/ppd-gateway
WORKDIR /var/lib/ppd-gateway
USER 10001:10001
EXPOSE 8000 9901
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["python", "-m", "gateway.ops.healthcheck"]
ENTRYPOINT ["ppd-gateway"]
CMD ["serve", "--config", "/etc/ppd-gateway/config/gateway.toml"]
