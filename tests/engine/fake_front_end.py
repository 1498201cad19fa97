"""A front end as vLLM's Rust one, of a hundred lines: what `tokenwire engine` starts in tests.

    python fake_front_end.py --version
    python fake_front_end.py serve DIR --handshake-port P --port N

It answers /health, and `POST /v1/completions` with prompts of ids, whole or streamed: an event for each
output of the engine.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread

import msgspec
import zmq

ENGINE = (0).to_bytes(2, "little")
FINISHES = ("stop", "length", "abort", "error", "repetition", None)
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Below:
    """The engine, as a front end sees it."""

    def __init__(self, handshake: str) -> None:
        context = zmq.Context()
        self.inputs, self.outputs = context.socket(zmq.ROUTER), context.socket(zmq.PULL)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.inputs, self.outputs)]
        hand = context.socket(zmq.ROUTER)
        hand.bind(handshake)
        identity, hello = hand.recv_multipart()
        assert unpack(hello)["status"] == "HELLO"
        places = [f"tcp://127.0.0.1:{port}" for port in ports]
        addresses = {"inputs": places[:1], "outputs": places[1:], "coordinator_input": None}
        hand.send_multipart([identity, pack({"addresses": addresses, "parallel_config": {}})])
        self.ready = unpack(self.inputs.recv_multipart()[1])
        assert unpack(hand.recv_multipart()[1])["status"] == "READY"
        self.numbers, self.lock = count(), Lock()
        self.waiting: dict[str, SimpleQueue] = {}
        self.is_dead = False
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while (message := self.outputs.recv()) != b"ENGINE_CORE_DEAD":
            for name, ids, *rest in unpack(message)[1]:
                finish, stop = (*rest[3:5], None, None)[:2]
                error = rest[16] if len(rest) > 16 else None
                reason = error["message"] if error else stop
                handed_over, _, _, prefilled = (*rest, *[None] * 10)[6:10]
                more = {"kv_transfer_params": handed_over, "prefill_stats": prefilled}
                self.waiting[name].put((ids, FINISHES[5 if finish is None else finish], reason, more))
        self.is_dead = True
        for queue in self.waiting.values():
            queue.put(([], "error", None, {}))

    def ask(self, body: dict):
        """The outputs of the engine for a request: ids, finish, stop, and what is of a hand-over."""
        name = f"cmpl-{next(self.numbers)}"
        extra = {**(body.get("vllm_xargs") or {}), "kv_transfer_params": body.get("kv_transfer_params")}
        params = {"max_tokens": body.get("max_tokens", 16), "extra_args": extra}
        params |= {"stop_token_ids": body.get("stop_token_ids") or [], "_eos_token_id": 0}
        request = [name, body["prompt"], None, params, None, 0.0, None, None, None]
        queue = self.waiting[name] = SimpleQueue()
        with self.lock:
            self.inputs.send_multipart([ENGINE, b"\x00", pack(request)])
        while True:
            ids, finish, stop, more = queue.get()
            yield ids, finish, stop, more
            if finish is not None:
                return


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    below: Below

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        known = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [{"id": "parrot", "object": "model"}]},
        }
        status = 503 if self.below.is_dead else 200 if self.path in known else 404
        self._send(status, "application/json", json.dumps(known.get(self.path, {})).encode())

    def do_POST(self) -> None:
        if self.path == "/crash":
            os._exit(3)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        outputs = list(self.below.ask(body))
        events = [
            {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish, "stop_reason": stop}
            for ids, finish, stop, _ in outputs
        ]
        head = {"id": "cmpl", "object": "text_completion", "created": 1, "model": "parrot"}
        stats = next((more["prefill_stats"] for *_, more in outputs if more.get("prefill_stats")), {})
        count = sum(len(ids) for ids, *_ in outputs)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        usage["total_tokens"] = sum(usage.values())
        usage["prompt_tokens_details"] = {"cached_tokens": stats.get("num_cached_tokens", 0)}
        if events[-1]["finish_reason"] == "error" and events[-1]["stop_reason"]:
            error = {"message": events[-1]["stop_reason"], "type": "BadRequestError", "code": 400}
            self._send(400, "application/json", json.dumps({"error": error}).encode())
            return
        if body.get("stream"):
            lines = [f"data: {json.dumps({**head, 'choices': [event]})}\n\n" for event in events]
            if (body.get("stream_options") or {}).get("include_usage"):
                lines.append(f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n")
            self._send(200, "text/event-stream", "".join((*lines, "data: [DONE]\n\n")).encode())
            return
        ids = [token for one, *_ in outputs for token in one]
        answer = {**head, "choices": [{**events[-1], "token_ids": ids}], "usage": usage}
        answer["kv_transfer_params"] = outputs[-1][3].get("kv_transfer_params")
        self._send(200, "application/json", json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if "--version" in sys.argv:
        print("vllm-rs 0.33.0")
        return
    flag = {name: sys.argv[sys.argv.index(name) + 1] for name in ("--handshake-port", "--port")}
    Handler.below = Below(f"tcp://127.0.0.1:{flag['--handshake-port']}")
    ThreadingHTTPServer(("127.0.0.1", int(flag["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
