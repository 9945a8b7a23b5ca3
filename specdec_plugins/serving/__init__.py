"""The HTTP server: batching across requests, streaming, metrics, and the web page.

FastAPI, pydantic and prometheus-client come with the extra `serve`; no other part imports this
package. The command specdec-translate starts here, where nothing heavy is imported.
"""

from __future__ import annotations

from specdec_plugins.errors import run_program


def translate() -> int:
    """The command specdec-translate; returns the exit status."""
    return run_program("specdec_plugins.serving.translate_cli")
