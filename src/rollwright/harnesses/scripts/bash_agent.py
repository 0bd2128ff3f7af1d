# /// script
# requires-python = ">=3.10"
# dependencies = []
# ///
# mypy: ignore-errors
# Runs under the interpreter of a box, which may be older than ours: plain Python, unannotated.
"""A small agent with one tool, bash, in a box: it asks the model behind the door, runs what it is told, and asks again.
Tools of the task, where there are any, are offered beside it and called over MCP.

A JSON object on stdin says what to do: messages, model, max_turns, output_limit, command_timeout_s, call_timeout_s. The
addresses and the keys come in the environment and are taken out of it, so that no command sees them. The last line of
stdout tells how it ended. Commands run one after the other, each in a shell of its own, in the workspace.
"""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command with bash and read what it prints. Each command begins in the same directory.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
KEPT = ("role", "content", "tool_calls", "reasoning_content")
CHUNK = 65536
# A child that a command leaves behind may hold its output open; this is how often we look whether only that is left.
LOOK_S = 0.05
ROUNDS = 12


class Door:
    """One address, over one connection that is made again where the other end has closed it."""

    def __init__(self, url, key, timeout_s):
        place = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        self.connection = kind(place.hostname, place.port, timeout=timeout_s)
        self.path = place.path
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, body):
        """Status and answer. A connection that was closed before it was used again has carried nothing: once more."""
        data = json.dumps(body).encode()
        used = self.connection.sock is not None
        try:
            return self._send(data)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.connection.close()
            if not used:
                raise
            return self._send(data)

    def _send(self, data):
        self.connection.request("POST", self.path, data, self.headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()


class Tools:
    """The tools of the task. Each question has a connection of its own, so that no call is made twice."""

    def __init__(self, url, key, timeout_s):
        self.place = (url, key, timeout_s)
        self.shown = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": tool["inputSchema"],
                },
            }
            for tool in self.ask("tools/list", {})["tools"]
        ]
        self.names = {tool["function"]["name"] for tool in self.shown}

    def ask(self, method, params):
        door = Door(*self.place)
        try:
            _, body = door.ask({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        finally:
            door.connection.close()
        answer = json.loads(body)
        if "result" not in answer:
            raise OSError(answer.get("error", {}).get("message", "no answer"))
        return answer["result"]

    def call(self, name, arguments):
        """What the tool says: a text, or parts where it shows more than text."""
        parts = [part_of(part) for part in self.ask("tools/call", {"name": name, "arguments": arguments})["content"]]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return "".join(texts) if len(texts) == len(parts) else parts


def part_of(part):
    if part["type"] == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{part['mimeType']};base64,{part['data']}"}}
    return {"type": "text", "text": part.get("text", "")}


def bounded(head, tail, dropped):
    said = head.decode("utf-8", "replace")
    if dropped:
        said += f"\n[{dropped} bytes left out]\n"
    return said + tail.decode("utf-8", "replace")


def collect(process, limit, deadline):
    """What the command prints, its head and its tail, until it ends; and whether time ran out first."""
    head, tail, dropped = bytearray(), bytearray(), 0
    poller = select.poll()
    poller.register(process.stdout, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return bounded(head, tail, dropped), True
        if not poller.poll(min(left, LOOK_S) * 1000):
            if process.poll() is not None:
                return bounded(head, tail, dropped), False
            continue
        chunk = os.read(process.stdout.fileno(), CHUNK)
        if not chunk:
            return bounded(head, tail, dropped), not ended(process, deadline)
        room = max(limit // 2 - len(head), 0)
        head += chunk[:room]
        tail += chunk[room:]
        extra = max(len(tail) - limit // 2, 0)
        dropped += extra
        del tail[:extra]


def ended(process, deadline):
    """Whether a command that prints no more ends in time."""
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return False
    return True


def bash(command, limit, timeout_s):
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    with process.stdout:
        said, late = collect(process, limit, time.monotonic() + timeout_s)
    if late:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{said}\n[ended after {timeout_s:g} s]"
    return said if process.returncode == 0 else f"{said}\n[exit code {process.returncode}]"


def result_of(call, told, tools):
    """What one tool call gives. A call that makes no sense is answered with the reason: the model may mend it."""
    try:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if tools is not None and name in tools.names:
            return tools.call(name, arguments)
        command = arguments["command"] if name == "bash" else None
    except (ValueError, TypeError, KeyError) as error:
        return f"this call of a tool cannot be read: {type(error).__name__}: {error}"
    except OSError as error:
        return f"the tool did not answer: {error}"
    if not isinstance(command, str) or "\0" in command:
        return 'there is no such tool; bash takes {"command": "..."}'
    try:
        return bash(command, told["output_limit"], told["command_timeout_s"])
    except OSError as error:
        return f"the command did not start: {error}"


def offered(tools):
    """Ours, but for a task that has one of the same name, and the task's own."""
    theirs = tools.shown if tools is not None else []
    return [tool for tool in [TOOL] if tools is None or "bash" not in tools.names] + theirs


def converse(door, told, tools=None):
    """Talk until the model asks for nothing more; how it ended, and a word on it."""
    messages, shown = list(told["messages"]), offered(tools)
    for _ in range(told["max_turns"]):
        status, body = door.ask({"model": told["model"], "messages": messages, "tools": shown})
        if status != 200:
            return "refused", f"{status}: {body[:2000].decode('utf-8', 'replace')}"
        answer = json.loads(body)["choices"][0]["message"]
        messages.append({name: answer[name] for name in KEPT if answer.get(name) is not None})
        messages[-1].setdefault("content", None)
        calls = answer.get("tool_calls") or ()
        if not calls:
            return "finished", ""
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": result_of(call, told, tools)} for call in calls
        ]
    return "turns", ""


def warmup():
    """Once per host, before any box is entered: all of it with ourselves, so that a fork finds what it needs made."""
    socket.getaddrinfo("127.0.0.1", 80, 0, socket.SOCK_STREAM)
    call = {"id": "call", "type": "function", "function": {"name": "bash", "arguments": '{"command": ":"}'}}
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Done."}}]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    told = {"messages": [{"role": "user", "content": "Do it."}], "model": "none", "max_turns": 1}
    told |= {"output_limit": 1000, "command_timeout_s": 10.0}
    for _ in range(ROUNDS):
        door = Door("http://127.0.0.1:1", "none", 10.0)
        door.connection.sock, other = socket.socketpair()
        with other:
            other.sendall(head.encode() + body)
            converse(door, told)
            door.connection.close()
        result_of(call, told, None)


def main():
    told = json.load(sys.stdin)
    url, key, patience_s = os.environ.pop("ROLLWRIGHT_URL"), os.environ.pop("ROLLWRIGHT_KEY"), told["call_timeout_s"]
    where, tools = os.environ.pop("ROLLWRIGHT_TOOLS_URL", ""), None
    if where:
        tools = Tools(where, os.environ.pop("ROLLWRIGHT_TOOLS_KEY"), patience_s)
    ended, why = converse(Door(f"{url}/v1/chat/completions", key, patience_s), told, tools)
    print(json.dumps({"ended": ended, "why": why}))


if __name__ == "__main__":
    main()
