"""Several engines behind one address; Ray Serve starts, monitors and load-balances them."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import time
from typing import Any

import torch
from joblib import cpu_count

from specdec_plugins.app.loading import read_words
from specdec_plugins.app.settings import Settings
from specdec_plugins.errors import Stopped, UserError, imported
from specdec_plugins.serving.metrics import SHARED_FOLDER
from specdec_plugins.serving.model import load_model
from specdec_plugins.serving.settings import LOG_LINE, ProcessOptions, ServerSettings

log = logging.getLogger("specdec.serving")

_NAME = "specdec"
# Ray gives its processes only half a minute to start. If a slow disk delays the first attempt, the
# second finds them in memory.
_ATTEMPTS = 3
# For Ray's own messages; the application logs every request.
_SERVE_LOG = {"log_level": "WARNING", "enable_access_log": False}
_SPARE = 256  # requests of a replica for other things: metrics, health, the page
# What Ray reads when it is imported; variables that are already set take precedence.
_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports
    "RAY_DEDUP_LOGS": "0",  # log lines of requests are alike, and none may be left out
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": (
        "specdec_plugins.serving.request_ids:proxy_middlewares"
    ),
    "RAY_worker_niceness": "0",  # engines run at normal priority
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine needs more than Ray's 5
}


def serve_replicas(model: Settings, settings: ServerSettings, process: ProcessOptions) -> int:
    """Listen until a signal; returns 0 if accepted work was finished.

    Raises UserError if Ray Serve is missing or the engines cannot be started.
    """
    # Errors in the files should be reported at once, and only once.
    read_words(model)
    for name, value in _RAY.items():
        os.environ.setdefault(name, value)
    ray, serve = imported("ray", "ray"), imported("ray.serve", "ray")
    with tempfile.TemporaryDirectory(prefix="specdec-metrics-") as folder:
        num_replicas = process.replicas or 1
        threads = process.threads or max(1, cpu_count() // num_replicas)
        # As many processors as the replicas ask for: Ray only keeps count of them.
        _start_ray(ray, num_replicas * threads)
        try:
            application = _application(serve, model, settings, process, threads, folder)
            _run(serve, application, process.host, process.port)
            return _drain(serve, settings.shutdown_timeout)
        finally:
            serve.shutdown()
            ray.shutdown()


def _start_ray(ray: Any, num_cpus: int) -> None:
    """Raises UserError if Ray does not start."""
    heeded = signal.getsignal(signal.SIGTERM)
    for num_left in reversed(range(_ATTEMPTS)):
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                logging_level=logging.WARNING,
            )
            signal.signal(signal.SIGTERM, heeded)
            return
        except SystemExit as stop:  # how Ray heeds SIGTERM
            raise Stopped(signal.SIGTERM) from stop
        except Exception as error:  # Ray has no exception class for it
            log.warning("Ray did not start (%s)", error)
            if not num_left:
                raise UserError(f"Ray did not start: {error}") from error


def _run(serve: Any, application: Any, host: str, port: int) -> None:
    """Serve until a signal."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": host, "port": port},
            logging_config=_SERVE_LOG,
        )
        serve.run(application, name=_NAME, route_prefix="/")
    except (RuntimeError, TimeoutError) as error:
        raise UserError(
            f"The replicas did not start; the lines above say why ({error})."
        ) from error
    log.info("running on http://%s:%d", host, port)
    stop.wait()


def _drain(serve: Any, timeout: float) -> int:
    """Finish accepted work, with the proxy running; returns 1 if time ran out."""
    serve.delete(_NAME, _blocking=False)
    end = time.monotonic() + timeout
    while _NAME in serve.status().applications:
        if time.monotonic() > end:
            return 1
        time.sleep(0.1)
    return 0


class Replica:
    """What Ray calls on a replica, apart from requests."""

    app: Any  # FastAPI's; Ray's wrapper sets it

    def check_health(self) -> None:
        """Ray replaces a replica if this raises."""
        if self.app.state.service.status == "failing":
            raise RuntimeError("this engine's decoding rounds fail, or its text thread is stuck")


def _application(
    serve: Any,
    model: Settings,
    settings: ServerSettings,
    process: ProcessOptions,
    threads: int,
    metrics_folder: str,
) -> Any:
    """The whole web application, once in each replica."""
    level, num_gpus = process.log_level.upper(), process.replica_gpus
    if num_gpus is None:  # one where GPUs are used
        device = model.device
        num_gpus = float(torch.cuda.is_available() if device is None else device[:4] == "cuda")

    def build() -> Any:
        from specdec_plugins.serving.app import create_app

        logging.basicConfig(level=level, format=LOG_LINE)
        torch.set_num_threads(threads)
        return create_app(load_model(model, settings.max_rows, process.part_times), settings)

    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        name="engine",
        num_replicas=process.replicas,
        # The application bounds the queue of sentences, and answers 429.
        max_ongoing_requests=settings.max_waiting + settings.max_rows + _SPARE,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
        logging_config=_SERVE_LOG,
        ray_actor_options={
            "num_cpus": threads,
            "num_gpus": num_gpus,
            "runtime_env": {"env_vars": {SHARED_FOLDER: metrics_folder}},
        },
    )
    return deployment.bind()
