"""The HTTP server: batching across requests, streaming, metrics, and the page.

FastAPI, pydantic and prometheus-client are the extra `serve`; nothing else imports this package.
"""
