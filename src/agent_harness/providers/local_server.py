"""The process that holds a local model: `python -m agent_harness.providers.local_server`.

A process of its own, since loading a model holds the interpreter's lock for seconds (leases and deadlines would miss
theirs), and since a crash of native code must not take the harness along. It ends when its input does, so it cannot
outlive the harness, however that died.

Input: one line `{"path", "contextWindow", "key"}`. Output: one line `{"address"}` or `{"error"}`.
"""

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Load, say where, and stay until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever native code prints is not an answer
    asked: dict[str, Any] = json.loads(sys.stdin.readline())
    try:
        server = _serve(asked["path"], asked["contextWindow"], asked["key"])
        told = {"address": server.listening_address}
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(told), file=out, flush=True)
    if "address" in told:
        sys.stdin.read()
    os._exit(0)  # without native destructors: requests may be running


def _serve(path: str, context_window: int, key: str) -> Any:  # whatever xllamacpp, which has no types, returns
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params: Any = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context_window
    params.n_parallel = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # one that is free
    params.api_keys = [key]
    params.ui = params.endpoint_slots = params.endpoint_props = params.warmup = False
    params.offline = True  # a file that is not there is an error, never a download
    params.verbosity = -1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
