"""The child process that serves one GGUF file through llama.cpp: `python -m rollwright.engines.local_server`.

It tells its address in one line on the descriptor that it is given, logs to stderr, and lives no longer than its parent
(`child`). Nothing is kept, so it ends without ceremony. The server has no key: it listens on loopback, on a port that
the kernel chose.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from .child import belong_to

# llama.cpp counts 1 error, 2 warning, 3 information; at 3 it writes a dozen lines per call.
_WARNINGS = 2


def main() -> None:
    options = _options()
    belong_to(options.parent)
    server = _serve(options)
    os.write(options.report_fd, f"{server.listening_address}\n".encode())
    os.close(options.report_fd)
    while os.read(0, 65536):
        pass
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rollwright.engines.local_server", description=__doc__)
    parser.add_argument("--model", required=True, help="the GGUF file")
    parser.add_argument("--port", type=int, default=0, help="0 lets the kernel choose")
    parser.add_argument("--report-fd", type=int, default=1, help="where the address is told")
    parser.add_argument("--parent", type=int, default=0, help="process to die with; 0 is none")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context-tokens", type=int, default=2048, help="of one conversation")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    # Answers name the model; a path would tell every trace where this machine keeps its files.
    params.model_alias = {os.path.basename(options.model)}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.context_tokens * options.parallel
    # One cache for each slot: a shared one was 20% slower with 8 slots on 2 cores.
    params.kv_unified = False
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    # One thread for each slot that streams, and some for health checks beside them.
    params.n_threads_http = options.parallel + 4
    # The default keeps up to 8 GB of old prompts in memory.
    params.cache_ram_mib = 0
    params.ui = False
    params.verbosity = _WARNINGS
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
