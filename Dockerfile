# A translation server with the bundled pair of models. CPU by default; for NVIDIA GPUs:
#   docker build --build-arg TORCH_INDEX=https://pypi.org/simple -t specdec:gpu .
#   docker run --gpus all ...
# Built by BuildKit, as Docker does from version 23 on, or by podman build --format docker.

# 3.11 to 3.14
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
# Where packages come from if not from PyPI, as in a network with a mirror of it.
ARG PIP_INDEX_URL
ENV PIP_CACHE_DIR=/var/cache/pip
# The kernels are compiled.
RUN apt-get update && apt-get install --yes --no-install-recommends g++
WORKDIR /source
COPY setup.py pyproject.toml LICENSE ./
COPY specdec_plugins ./specdec_plugins
COPY data/models ./data/models
# setup.py does without them where they do not compile; an image should not be slow without a word.
RUN --mount=type=cache,target=/var/cache/pip pip wheel --no-deps --wheel-dir /wheel . \
 && python -m zipfile --list /wheel/*.whl | grep --quiet /_kernels

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG PIP_INDEX_URL
ENV PIP_CACHE_DIR=/var/cache/pip PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# The kernels' threads.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/specdec
COPY constraints.txt ./
# torch first: it is large and changes seldom, so that a new version of the code reuses its layer.
# Alone, because its index has few versions of what it needs; the rest comes from PyPI.
RUN --mount=type=cache,target=/var/cache/pip \
    pip install --constraint constraints.txt --index-url "$TORCH_INDEX" --no-deps torch \
 && pip install --constraint constraints.txt torch
RUN --mount=type=cache,target=/var/cache/pip --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip install --constraint constraints.txt "$(echo /wheel/*.whl)[serve,detect,files]" \
 && useradd --uid 10001 --no-create-home specdec

# By number, so that Kubernetes can tell that it is not root.
USER 10001
EXPOSE 8080
# Long enough for accepted work to finish; see --shutdown-timeout.
STOPSIGNAL SIGTERM
# Asks the port that the server was told, the last one that its command line names.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s CMD \
  ["python", "-c", "import http.client, re, sys; port = re.findall(r'--port[=\\0](\\d+)', open('/proc/1/cmdline').read())[-1]; asked = http.client.HTTPConnection('127.0.0.1', int(port), timeout=4); asked.request('GET', '/health'); sys.exit(asked.getresponse().status != 200)"]
# Inside a container loopback would be out of everybody's reach.
ENTRYPOINT ["specdec", "serve", "--host", "0.0.0.0", "--port", "8080"]
# The bundled pair; for others their folder and its languages, and any other flags.
CMD []
