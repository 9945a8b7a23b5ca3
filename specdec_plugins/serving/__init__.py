"""The HTTP server: batching across requests, streaming, metrics, and the web page; its client.

FastAPI, pydantic and prometheus-client come with the extra `serve`; no other part imports this
package, and `specdec translate`, which begins here, does without them.
"""
