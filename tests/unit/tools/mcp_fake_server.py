"""A stdio MCP server that misbehaves on request: the name of the called tool says how. No SDK, only lines of JSON."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

START = sys.argv[1] if len(sys.argv) > 1 else "good"
OUT = sys.stdout.buffer
TOOLS = ["echo", "env", "slow", "never", "partial", "utf8", "garbage", "exit", "half_exit", "twice", "late", "flood"]
TOOLS += ["endless", "changed", "huge", "deaf", "image", "fails", "refuses", "wrong_id", "child", "pid", "nan", "shape"]


def send(message: object) -> None:
    OUT.write(json.dumps(message).encode() + b"\n")
    OUT.flush()


def answer(id: object, text: str, **more: object) -> None:
    send({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}], **more}})


def tool(name: str) -> dict[str, object]:
    described: dict[str, object] = {"name": name, "description": name, "inputSchema": {"type": "object"}}
    if name == "echo":
        described["annotations"] = {"readOnlyHint": True}
    return described


def note(text: str) -> None:
    if len(sys.argv) > 2:
        with Path(sys.argv[2]).open("a") as log:
            log.write(text + "\n")


def call(id: object, name: str, args: dict[str, object]) -> None:
    match name:
        case "echo":
            answer(id, json.dumps(args))
        case "env":
            answer(id, json.dumps(dict(os.environ)))
        case "pid":
            answer(id, str(os.getpid()))
        case "slow":
            time.sleep(0.2)
            answer(id, "at last")
        case "never":
            pass
        case "partial":
            OUT.write(b'{"jsonrpc": "2.0", "id": ')
            OUT.flush()
        case "half_exit":
            OUT.write(b'{"jsonrpc": "2.0", "id": ')
            OUT.flush()
            os._exit(0)
        case "exit":
            os._exit(3)
        case "utf8":
            OUT.write(b'{"jsonrpc": "2.0", "method": "\xff\xfe"}\n\xc3(\n')
            answer(id, "after invalid bytes")
        case "garbage":
            OUT.write(b"INFO starting up\n\n[1, 2]\n42\n{}\n\x1b[31mred\x1b[0m\n")
            answer(id, "after garbage")
        case "nan":
            OUT.write(b'{"jsonrpc": "2.0", "id": ' + str(id).encode() + b', "result": {"content": [], "x": NaN}}\n')
            OUT.flush()
        case "shape":
            send({"jsonrpc": "2.0", "id": id, "result": {"content": "not a list"}})
        case "twice":
            answer(id, "first")
            answer(id, "second")
        case "late":
            time.sleep(0.6)
            answer(id, "too late")
        case "wrong_id":
            answer(987654, "foreign")
            answer(None, "nobody's")
        case "flood":
            for number in range(20_000):
                send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": number}})
            answer(id, "after the flood")
        case "endless":
            while True:
                send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        case "changed":
            TOOLS.append("added")
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            answer(id, "there is more now")
        case "huge":
            OUT.write(b'{"jsonrpc": "2.0", "x": "')
            for _ in range(64):
                OUT.write(b"y" * 1_000_000)
            OUT.write(b'"}\n')
            answer(id, "small")
        case "deaf":
            time.sleep(3600)
        case "image":
            image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
            large = {"type": "image", "data": "A" * 6_000_000, "mimeType": "image/png"}
            audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
            send({"jsonrpc": "2.0", "id": id, "result": {"content": [image, large, audio]}})
        case "fails":
            answer(id, "no such file", isError=True)
        case "refuses":
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "wrong arguments"}})
        case "child":
            child = subprocess.Popen(["sleep", "1000"])
            answer(id, str(child.pid))
        case _:
            answer(id, f"{name} it is")


def main() -> None:
    if START == "dies":
        sys.exit(1)
    if START == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(f"started {os.getpid()}")
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if START == "mute" or id is None:
            continue
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            result = {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "fake", "version": "1"},
            }
            send({"jsonrpc": "2.0", "id": id, "result": result})
        elif method == "tools/list":
            send({"jsonrpc": "2.0", "id": id, "result": {"tools": [tool(name) for name in TOOLS]}})
        elif method == "tools/call":
            note(f"call {message['params']['name']}")
            call(id, message["params"]["name"], message["params"].get("arguments") or {})
        else:
            send({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "unknown method"}})
    while START == "stubborn":
        time.sleep(1)


main()
