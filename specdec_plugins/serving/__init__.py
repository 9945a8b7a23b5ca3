"""The HTTP server: batching across requests, streaming, metrics, and the web page.

FastAPI, pydantic and prometheus-client come with the extra `serve`; no other part imports this
package.
"""
