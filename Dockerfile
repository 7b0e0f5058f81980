# mjfleet and its bundled tasks: docker build -t lab/mjfleet .
#
# Tasks of your own: FROM lab/mjfleet, then COPY tasks tasks, in an image of your own.
FROM python:3.12-slim-bookworm AS base

ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1

# For videos, which are drawn without a display.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1-mesa-dri libosmesa6 && \
    rm -rf /var/lib/apt/lists/*

# hadolint ignore=DL3013
RUN python3 -m pip install uv

FROM base

WORKDIR /mjfleet
COPY . .
# What .ci/run tests: the wheel, in an environment of its own, with the versions of requirements.lock.
RUN uv build --out-dir /dist && \
    uv venv /venv && \
    uv pip install --python /venv --require-hashes -r requirements.lock && \
    uv pip install --python /venv --no-deps /dist/*.whl

ENV PATH=/venv/bin:$PATH
WORKDIR /work
CMD ["mjfleet", "tasks"]
