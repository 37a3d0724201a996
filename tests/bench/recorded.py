"""A server that answers as vLLM, SGLang, Ollama, LM Studio, llama.cpp or Parlay would."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ["Rain", " falls", " on", " the", " quiet", " pond", "."]


@dataclass
class Recorded:
    """What a kind of server says, and what it was asked."""

    kind: str
    delay_s: float = 0.0
    version: str = "1.0"
    text: list[str] = field(default_factory=lambda: list(WORDS))
    status: int = 200
    usage: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    n_drafts: int = 100
    sleep = staticmethod(time.sleep)

    def get(self, path: str) -> Any:
        """JSON, text, or None for not found."""
        owner = "parlay" if self.kind == "parlay" else "x"
        models = {"data": [{"id": "m/tiny.gguf", "owned_by": owner}]}
        routes: dict[str, Any] = {"/v1/models": models}
        if self.kind == "vllm":
            routes |= {"/version": {"version": self.version}, "/metrics": self._vllm_metrics()}
        if self.kind == "sglang":
            routes["/metrics"] = 'sglang:spec_accept_length{model_name="m"} 2.5\n'
        if self.kind == "ollama":
            routes["/api/version"] = {"version": self.version}
        if self.kind == "lmstudio":
            routes["/api/v0/models"] = {"data": [{"id": "tiny", "type": "llm"}]}
        if self.kind == "llama.cpp":
            props = {"default_generation_settings": {}, "build_info": f"b{self.version}"}
            routes["/props"] = props
        if self.kind == "parlay":
            routes["/metrics"] = "parlay_rounds_total 3\n"
        return routes.get(path)

    def _vllm_metrics(self) -> str:
        n = self.n_drafts
        return (
            "# HELP vllm:spec_decode_num_drafts_total Number of drafts.\n"
            f'vllm:spec_decode_num_drafts_total{{model_name="m"}} {n}.0\n'
            f'vllm:spec_decode_num_draft_tokens_total{{model_name="m"}} {3 * n}.0\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{model_name="m"}} {1.5 * n}\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {n}.0\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {n / 2}\n'
        )

    def post(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        self.asked.append({"path": path, **body})
        if self.kind == "ollama":
            yield from self._ollama()
            return
        if body.get("stream") is False:
            yield self._scored()
            return
        for word in self.text:
            self.sleep(self.delay_s)
            yield _event({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
        self.n_drafts += 2
        last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        yield _event(last | self._extras())
        if self.usage:
            usage = {"completion_tokens": len(self.text), "prompt_tokens": 11}
            yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _scored(self) -> bytes:
        rows = [
            {"token": word, "logprob": -0.5, "top_logprobs": [{"token": word, "logprob": -0.5}]}
            for word in self.text
        ]
        return json.dumps({"choices": [{"logprobs": {"content": rows}}]}).encode()

    def _extras(self) -> dict[str, Any]:
        n = len(self.text)
        if self.kind == "llama.cpp":
            timings = {"predicted_n": n, "predicted_ms": 70.0, "draft_n": 6, "draft_n_accepted": 4}
            return {"timings": timings}
        if self.kind == "lmstudio":
            stats = {"generation_time": 0.07, "total_draft_tokens_count": 6}
            return {"stats": stats | {"accepted_draft_tokens_count": 3}}
        if self.kind == "parlay":
            told = {"drafted": 5, "accepted": 4, "rounds": 3, "windows": {"2": 2, "0": 1}}
            told |= {"draft_ms": 1.0, "verify_ms": 60.0, "overhead_ms": 2.0}
            return {"speculation": told, "timings": {"predicted_ms": 65.0}}
        return {}

    def _ollama(self) -> Iterator[bytes]:
        for word in self.text:
            self.sleep(self.delay_s)
            yield json.dumps({"message": {"content": word}, "done": False}).encode() + b"\n"
        end = {"message": {"content": ""}, "done": True, "done_reason": "stop"}
        end |= {"eval_count": len(self.text), "eval_duration": 70_000_000, "prompt_eval_count": 9}
        yield json.dumps(end).encode() + b"\n"


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@contextmanager
def serve(recorded: Recorded) -> Iterator[str]:
    """The server's address while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = recorded.get(self.path)
            body = found if isinstance(found, str) else json.dumps(found)
            self._answer(404 if found is None else 200, [body.encode()])

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            recorded.headers.append(dict(self.headers))
            if recorded.status != 200:
                error = {"error": {"message": "no such model <b>", "code": recorded.status}}
                self._answer(recorded.status, [json.dumps(error).encode()])
            else:
                self._answer(200, recorded.post(self.path, body))

        def _answer(self, status: int, parts: Any) -> None:
            self.send_response(status)
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for part in parts:
                    self.wfile.write(part)
                    self.wfile.flush()
            except OSError:
                return  # the client has left: that is what some tests want

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
