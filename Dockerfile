# A translation server with the bundled pair of models. CPU by default; for a GPU:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 -t specdec:gpu .
#   docker run --gpus all ...
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/specdec
# torch first: it is large and changes seldom, so that a new version of the code reuses its layer.
COPY constraints.txt ./
RUN pip install --constraint constraints.txt --index-url "$TORCH_INDEX" torch
COPY setup.py pyproject.toml LICENSE ./
COPY specdec_plugins ./specdec_plugins
COPY data/models ./data/models
RUN pip install --constraint constraints.txt ".[serve]" \
 && useradd --system --no-create-home specdec

USER specdec
EXPOSE 8080
# Long enough for accepted work to finish; see --shutdown-timeout.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s CMD \
  ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
# Inside a container loopback would be out of everybody's reach.
ENTRYPOINT ["specdec-serve", "--host", "0.0.0.0", "--port", "8080"]
# The bundled pair; for others their folder and its languages, and any other flags.
CMD []
